/* bind_doctor.c - core.doctor: facts that only ./tl doctor asks for.
**
**   doctor.driver_version() -> 13000, or nil and the reason
**   doctor.link(from, to) -> { direct =, rank =, bytes_per_second = }
**   doctor.copy_speed(device) -> bytes read and written a second, of GPU `device`, from 0
**   doctor.library(i) -> { name, use, file?, version? }; nil behind the last one, from 1
**   doctor.exp2(device, first, count, threads) -> { sums of blocks }
**   doctor.steps(device, pattern, seed, tiles) -> outputs that differ from the host's model, all
**                              outputs, their hash, and the first that differs in words
**   doctor.patterns() -> names
**   doctor.product(device, { product =, dtype =, out =, rows =, columns =, depth =, add = })
**                              -> { id =, offered =, refused =, own_us =, us = }: which way of
**                              cuBLASLt is proven for it; id 0: none
**
** `device` is "host" or "cuda", GPU 0. See kernels/selftest/selftest.h.
*/
#include <stdio.h>
#include <string.h>

#include "../../kernels/gemm/gemm_proof.h"
#include "../../kernels/gemm/gemm_provider.h"
#include "../../kernels/selftest/selftest.h"
#include "../cuda_link.h"
#include "../dtype.h"
#include "../random.h"
#include "bind_cuda.h"
#include "bind_program.h"

static const char *const devices[] = {"host", "cuda", NULL};

static int driver_version(lua_State *L) {
  int32_t version;
  if (tl_cuda_driver_version(&version) == TL_OK) {
    lua_pushinteger(L, version);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, tl_last_error());
  return 2;
}

static int link_between(lua_State *L) {
  tl_cuda_link link;
  bind_check(L, tl_cuda_link_between((int32_t)luaL_checkinteger(L, 1),
                                     (int32_t)luaL_checkinteger(L, 2), &link));
  lua_createtable(L, 0, 3);
  lua_pushboolean(L, link.direct);
  lua_setfield(L, -2, "direct");
  lua_pushinteger(L, link.rank);
  lua_setfield(L, -2, "rank");
  lua_pushnumber(L, link.bytes_per_second);
  lua_setfield(L, -2, "bytes_per_second");
  return 1;
}

static int copy_speed(lua_State *L) {
  double speed = 0;
  bind_check(L, tl_cuda_copy_speed((int32_t)luaL_checkinteger(L, 1), &speed));
  lua_pushnumber(L, speed);
  return 1;
}

static int library(lua_State *L) {
  tl_cuda_library found;
  const lua_Integer i = luaL_checkinteger(L, 1);
  if (i < 1 || i > TL_CUDA_LIBRARIES) return 0;
  tl_cuda_library_find((int32_t)i - 1, &found);
  lua_createtable(L, 0, 4);
  lua_pushstring(L, found.name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, found.use);
  lua_setfield(L, -2, "use");
  if (found.file == NULL) return 1;
  lua_pushstring(L, found.file);
  lua_setfield(L, -2, "file");
  lua_pushinteger(L, found.version);
  lua_setfield(L, -2, "version");
  return 1;
}

static int exp2_sums(lua_State *L) {
  const int on_gpu = luaL_checkoption(L, 1, NULL, devices);
  const lua_Integer first = luaL_checkinteger(L, 2), count = luaL_checkinteger(L, 3);
  luaL_argcheck(L, first >= 0 && first < TL_SELFTEST_BLOCKS, 2, "no such block");
  luaL_argcheck(L, count >= 1 && count <= TL_SELFTEST_BLOCKS - first, 3, "no such block");
  const lua_Integer threads = luaL_optinteger(L, 4, 0);
  uint64_t *sums = lua_newuserdatauv(L, (size_t)count * sizeof *sums, 0);
  if (on_gpu)
    bind_check(L, tl_selftest_exp2_cuda(bind_cuda(L, 0), (int32_t)first, (int32_t)count, sums));
  else
    tl_selftest_exp2_host(bind_team(L, threads), (int32_t)first, (int32_t)count, sums);
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 0; i < count; i++) {
    lua_pushinteger(L, (lua_Integer)sums[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* A buffer that the collector frees. */
static void *room(lua_State *L, lua_Integer count, size_t element) {
  return lua_newuserdatauv(L, (size_t)count * element, 0);
}

static int steps(lua_State *L) {
  const int on_gpu = luaL_checkoption(L, 1, NULL, devices);
  const lua_Integer pattern = luaL_checkinteger(L, 2), seed = luaL_checkinteger(L, 3);
  const lua_Integer tiles = luaL_checkinteger(L, 4), outputs = tiles * TL_SELFTEST_TILE;
  luaL_argcheck(L, pattern >= 1 && pattern <= TL_SELFTEST_PATTERNS, 2, "no such pattern");
  luaL_argcheck(L, tiles >= 1 && tiles <= 1 << 16, 4, "1 to 65536 tiles");
  uint16_t *a = room(L, outputs * 2, sizeof *a), *b = room(L, outputs, sizeof *b);
  float *c = room(L, outputs, sizeof *c), *d = room(L, outputs, sizeof *d);
  float *host = room(L, outputs, sizeof *host);
  tl_selftest_operands((int32_t)pattern - 1, (uint64_t)seed, (int32_t)tiles, a, b, c);
  tl_selftest_steps_host(a, b, c, (int32_t)tiles, host);
  if (on_gpu)
    bind_check(L, tl_selftest_steps_cuda(bind_cuda(L, 0), a, b, c, (int32_t)tiles, d));
  else
    memcpy(d, host, (size_t)outputs * sizeof *d);
  lua_Integer differ = 0, first = 0;
  uint64_t hash = 0;
  for (lua_Integer i = 0; i < outputs; i++) {
    const uint32_t model = tl_bits_from_f32(host[i]), found = tl_bits_from_f32(d[i]);
    hash = tl_mix64(hash + found);
    if (model == found) continue;
    if (differ++ == 0) first = i;
  }
  lua_pushinteger(L, differ);
  lua_pushinteger(L, outputs);
  lua_pushinteger(L, (lua_Integer)hash);
  if (differ == 0) return 3;
  char text[96];
  snprintf(text, sizeof text, "output %lld: the model has %08x, the GPU %08x", (long long)first,
           tl_bits_from_f32(host[first]), tl_bits_from_f32(d[first]));
  lua_pushstring(L, text);
  return 4;
}

/* ---- products through cuBLASLt ---- */

static tl_status host_product(tl_gemm_product product, const tl_call *call) {
  if (product == TL_GEMM_LINEAR) return tl_host_linear(call);
  if (product == TL_GEMM_GRAD_INPUT) return tl_host_linear_grad_input(call);
  return tl_host_linear_grad_weight(call);
}

static int choice_of(lua_State *L, int arg, const char *name, const char *const *names) {
  lua_getfield(L, arg, name);
  const int i = luaL_checkoption(L, -1, NULL, names);
  lua_pop(L, 1);
  return i;
}

static void read_shape(lua_State *L, int arg, tl_gemm_shape *out) {
  static const char *const products[] = {"linear", "linear_grad_input", "linear_grad_weight", NULL};
  static const char *const dtypes[] = {"f32", "bf16", NULL};
  static const tl_dtype numbers[] = {TL_F32, TL_BF16};
  memset(out, 0, sizeof *out);
  out->product = choice_of(L, arg, "product", products);
  out->dtype = numbers[choice_of(L, arg, "dtype", dtypes)];
  out->out_dtype = numbers[choice_of(L, arg, "out", dtypes)];
  out->rows = bind_integer(L, arg, "product", "rows", 0);
  out->columns = bind_integer(L, arg, "product", "columns", 0);
  out->depth = bind_integer(L, arg, "product", "depth", 0);
  out->parts = bind_integer(L, arg, "product", "parts", 1);
  lua_getfield(L, arg, "add");
  out->add = lua_toboolean(L, -1);
  lua_pop(L, 1);
  luaL_argcheck(L, out->rows > 0 && out->columns > 0 && out->depth > 0, arg, "no such product");
  luaL_argcheck(L,
                out->parts == 1 || (out->parts > 1 && out->parts <= TL_GEMM_LIBRARY_PARTS &&
                                    out->product == TL_GEMM_LINEAR),
                arg, "no such parts");
}

static void set_number(lua_State *L, const char *name, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}

static int product(lua_State *L) {
  const int on_gpu = luaL_checkoption(L, 1, NULL, devices);
  tl_gemm_shape shape;
  tl_gemm_choice choice;
  luaL_checktype(L, 2, LUA_TTABLE);
  read_shape(L, 2, &shape);
  tl_gemm_trial trial = {.cuda = on_gpu ? bind_cuda(L, 0) : NULL,
                         .team = on_gpu ? NULL : bind_team(L, 0),
                         .own = on_gpu ? tl_gemm_own : host_product};
  if (on_gpu) bind_check(L, tl_cuda_enter(trial.cuda));
  bind_check(L, tl_gemm_library_open(trial.cuda, &trial.library));
  const tl_status status = tl_gemm_choose(&trial, &shape, 1, &choice);
  if (status == TL_OK) tl_gemm_problem_free(trial.library, &choice.problem);
  tl_gemm_library_close(trial.library);
  bind_check(L, status);
  lua_createtable(L, 0, 5);
  lua_pushinteger(L, choice.id);
  lua_setfield(L, -2, "id");
  lua_pushinteger(L, choice.offered);
  lua_setfield(L, -2, "offered");
  lua_pushinteger(L, choice.refused);
  lua_setfield(L, -2, "refused");
  set_number(L, "own_us", choice.own_us);
  set_number(L, "us", choice.us);
  return 1;
}

static int patterns(lua_State *L) {
  lua_createtable(L, TL_SELFTEST_PATTERNS, 0);
  for (int32_t i = 0; i < TL_SELFTEST_PATTERNS; i++) {
    lua_pushstring(L, tl_selftest_pattern(i));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

void bind_doctor_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"driver_version", driver_version},
      {"link",           link_between  },
      {"copy_speed",     copy_speed    },
      {"library",        library       },
      {"exp2",           exp2_sums     },
      {"steps",          steps         },
      {"patterns",       patterns      },
      {"product",        product       },
      {NULL,             NULL          },
  };
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "doctor");
}
