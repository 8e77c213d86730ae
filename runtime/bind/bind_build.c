/* bind_build.c - core.build(): what this program is: { version, compiler, simd, sanitizer }. */
#include "../../kernels/simd.h"
#include "bind.h"

static int build(lua_State *L) {
  lua_createtable(L, 0, 4);
  lua_pushliteral(L, TL_VERSION);
  lua_setfield(L, -2, "version");
#if defined(__clang__)
  lua_pushliteral(L, "clang " __clang_version__);
#else
  lua_pushliteral(L, "gcc " __VERSION__);
#endif
  lua_setfield(L, -2, "compiler");
  lua_pushstring(L, tl_simd_name(tl_simd_level()));
  lua_setfield(L, -2, "simd");
  lua_pushliteral(L, TL_SANITIZER);
  lua_setfield(L, -2, "sanitizer");
  return 1;
}

void bind_build_open(lua_State *L) {
  lua_pushcfunction(L, build);
  lua_setfield(L, -2, "build");
}
