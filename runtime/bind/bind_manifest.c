/* bind_manifest.c - core.manifest: the machine code in this program, and what it should be.
**
**   manifest.images() -> { { name =, arch = 90, size =, compiler =, flags =, kernels = {} }, .. }
**   manifest.image(i) -> the cubin as text, from 1
**   manifest.read(cubin) -> compiler, flags, { { name, sha256, registers, shared, local }, .. }
**   manifest.texts() -> the verified table, the table of this build
**   manifest.check(name, arch, cubin, verified, own) -> nil, or the other compiler; raises, with
**                    the names, when kernels are not as the table says
*/
#include <string.h>

#include "../manifest.h"
#include "bind.h"

static void set_integer(lua_State *L, const char *name, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, name);
}

static void set_text(lua_State *L, const char *name, const char *text) {
  lua_pushstring(L, text);
  lua_setfield(L, -2, name);
}

/* Adds to the list on top of the stack. */
static tl_status push_kernel(void *context, const tl_cubin_kernel *k) {
  lua_State *L = context;
  lua_createtable(L, 0, 5);
  set_text(L, "name", k->name);
  set_text(L, "sha256", k->sha256);
  set_integer(L, "registers", k->registers);
  set_integer(L, "shared", k->shared);
  set_integer(L, "local", k->local);
  lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  return TL_OK;
}

static int manifest_read(lua_State *L) {
  size_t bytes;
  tl_cubin_tool tool;
  const char *cubin = luaL_checklstring(L, 1, &bytes);
  bind_check(L, tl_cubin_tool_of(cubin, (int64_t)bytes, &tool));
  lua_pushstring(L, tool.compiler);
  lua_pushstring(L, tool.flags);
  lua_newtable(L);
  bind_check(L, tl_cubin_kernels(cubin, (int64_t)bytes, push_kernel, L));
  return 3;
}

static int manifest_images(lua_State *L) {
  lua_createtable(L, tl_cuda_image_count, 0);
  for (int32_t i = 0; i < tl_cuda_image_count; i++) {
    const tl_cuda_image *image = &tl_cuda_images[i];
    tl_cubin_tool tool;
    bind_check(L, tl_cubin_tool_of(image->start, image->end - image->start, &tool));
    lua_createtable(L, 0, 5);
    set_text(L, "name", image->name);
    set_integer(L, "arch", image->arch);
    set_integer(L, "size", image->end - image->start);
    set_text(L, "compiler", tool.compiler);
    set_text(L, "flags", tool.flags);
    lua_newtable(L);
    bind_check(L, tl_cubin_kernels(image->start, image->end - image->start, push_kernel, L));
    lua_setfield(L, -2, "kernels");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int manifest_image(lua_State *L) {
  const lua_Integer i = luaL_checkinteger(L, 1);
  luaL_argcheck(L, i >= 1 && i <= tl_cuda_image_count, 1, "no such image");
  const tl_cuda_image *image = &tl_cuda_images[i - 1];
  lua_pushlstring(L, (const char *)image->start, (size_t)(image->end - image->start));
  return 1;
}

static int manifest_texts(lua_State *L) {
  lua_pushstring(L, tl_manifest_verified);
  lua_pushstring(L, tl_manifest_own);
  return 2;
}

static int manifest_check(lua_State *L) {
  size_t bytes;
  char other[32];
  tl_cuda_image image = {.name = luaL_checkstring(L, 1), .arch = (int32_t)luaL_checkinteger(L, 2)};
  image.start = (const unsigned char *)luaL_checklstring(L, 3, &bytes);
  image.end = image.start + bytes;
  const tl_manifest manifest = {luaL_checkstring(L, 4), luaL_checkstring(L, 5)};
  bind_check(L, tl_manifest_check(&manifest, &image, other));
  if (other[0] == '\0') return 0;
  lua_pushstring(L, other);
  return 1;
}

void bind_manifest_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"images", manifest_images},
      {"image",  manifest_image },
      {"read",   manifest_read  },
      {"texts",  manifest_texts },
      {"check",  manifest_check },
      {NULL,     NULL           },
  };
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "manifest");
}
