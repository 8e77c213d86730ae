/* bind_math.c - core.math: the functions of kernels/math.h, for numbers that Lua plans.
**
**   core.math.exp2(x)  log2(x)  exp(x)  log(x)  cos(x)  sin(x)  tanh(x)  sigmoid(x)  rsqrt(x)
**
** An argument is rounded to f32 first; results are f32, as Lua numbers.
*/
#include "../../kernels/math.h"

#include "bind.h"

#define FUNCTION(name)                                           \
  static int math_##name(lua_State *L) {                         \
    lua_pushnumber(L, tl_##name((float)luaL_checknumber(L, 1))); \
    return 1;                                                    \
  }
FUNCTION(exp2)
FUNCTION(log2)
FUNCTION(exp)
FUNCTION(log)
FUNCTION(cos)
FUNCTION(sin)
FUNCTION(tanh)
FUNCTION(sigmoid)
FUNCTION(rsqrt)
#undef FUNCTION

void bind_math_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"exp2",    math_exp2   },
      {"log2",    math_log2   },
      {"exp",     math_exp    },
      {"log",     math_log    },
      {"cos",     math_cos    },
      {"sin",     math_sin    },
      {"tanh",    math_tanh   },
      {"sigmoid", math_sigmoid},
      {"rsqrt",   math_rsqrt  },
      {NULL,      NULL        },
  };
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "math");
}
