/* bind_hash.c - hashes and counter-based random words.
**
**   core.hash(text) -> 16 hex digits            core.hash_int(text) -> integer      XXH64, seed 0
**   core.mix64(integer) -> integer
**   core.philox(c0, c1, c2, c3, k0, k1) -> four words
**   core.random_words(seed, stream, index, step) -> four words, as kernels draw them
*/
#include <stdio.h>

#include "../hash.h"
#include "bind.h"

static uint64_t check_hash(lua_State *L, int arg) {
  size_t length;
  const char *text = luaL_checklstring(L, arg, &length);
  return tl_hash_bytes(text, (int64_t)length);
}

static int core_hash(lua_State *L) {
  char text[17];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)check_hash(L, 1));
  lua_pushstring(L, text);
  return 1;
}

static int core_hash_int(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check_hash(L, 1));
  return 1;
}

static int core_mix64(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)tl_mix64((uint64_t)luaL_checkinteger(L, 1)));
  return 1;
}

static int push_words(lua_State *L, tl_words words) {
  for (int i = 0; i < 4; i++) lua_pushinteger(L, words.word[i]);
  return 4;
}

static uint32_t check_word(lua_State *L, int arg) {
  const lua_Integer word = luaL_checkinteger(L, arg);
  luaL_argcheck(L, word >= 0 && word <= UINT32_MAX, arg, "a word has 32 bits");
  return (uint32_t)word;
}

static int core_philox(lua_State *L) {
  tl_words counter;
  tl_random_key key;
  for (int i = 0; i < 4; i++) counter.word[i] = check_word(L, 1 + i);
  for (int i = 0; i < 2; i++) key.word[i] = check_word(L, 5 + i);
  return push_words(L, tl_philox(counter, key));
}

static int core_random_words(lua_State *L) {
  const uint64_t seed = (uint64_t)luaL_checkinteger(L, 1);
  const uint64_t stream = (uint64_t)luaL_checkinteger(L, 2);
  const uint64_t index = (uint64_t)luaL_checkinteger(L, 3);
  const uint64_t step = (uint64_t)luaL_checkinteger(L, 4);
  return push_words(L, tl_random_words(tl_random_key_of(seed, stream), index, step));
}

void bind_hash_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"hash",         core_hash        },
      {"hash_int",     core_hash_int    },
      {"mix64",        core_mix64       },
      {"philox",       core_philox      },
      {"random_words", core_random_words},
      {NULL,           NULL             },
  };
  luaL_setfuncs(L, functions, 0);
}
