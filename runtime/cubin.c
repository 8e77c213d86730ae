/* cubin.c - sections, symbols and attributes of a cubin. */
#include "cubin.h"

#include <elf.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>

enum { /* attributes of .nv.info: a format byte, a number, a 16-bit value or length */
       FORMAT_SIZED = 4,
       ATTRIBUTE_PARAMETER_BANK = 0x0a, /* symbol, offset and size */
       ATTRIBUTE_FRAME = 0x11,          /* symbol, bytes */
       ATTRIBUTE_REGISTERS = 0x2f       /* symbol, count */
};

typedef struct cubin {
  const unsigned char *data;
  int64_t bytes;
  Elf64_Ehdr head;
} cubin;

static tl_status damaged(const char *what) {
  return tl_fail(TL_DEVICE, "a cubin is damaged: %s lies outside it", what);
}

static int inside(const cubin *c, uint64_t offset, uint64_t bytes) {
  return offset <= (uint64_t)c->bytes && bytes <= (uint64_t)c->bytes - offset;
}

static tl_status open_cubin(const void *image, int64_t bytes, cubin *out) {
  *out = (cubin){.data = image, .bytes = bytes};
  if (!inside(out, 0, sizeof out->head)) return damaged("its head");
  memcpy(&out->head, image, sizeof out->head);
  if (memcmp(out->head.e_ident, ELFMAG, SELFMAG) != 0 || out->head.e_ident[EI_CLASS] != ELFCLASS64)
    return tl_fail(TL_DEVICE, "a cubin is damaged: it is no 64-bit ELF file");
  if (out->head.e_shentsize != sizeof(Elf64_Shdr) ||
      !inside(out, out->head.e_shoff, (uint64_t)out->head.e_shnum * sizeof(Elf64_Shdr)))
    return damaged("the table of sections");
  return TL_OK;
}

/* A section that takes no room in the file (shared memory) gets sh_size 0, so that nobody reads it;
** its size is then in sh_entsize, which such a section has no use for. */
static tl_status section_at(const cubin *c, uint32_t index, Elf64_Shdr *out) {
  if (index >= c->head.e_shnum) return damaged("a section");
  memcpy(out, c->data + c->head.e_shoff + (uint64_t)index * sizeof *out, sizeof *out);
  if (out->sh_type == SHT_NOBITS) {
    out->sh_entsize = out->sh_size;
    out->sh_offset = out->sh_size = 0;
  }
  if (inside(c, out->sh_offset, out->sh_size)) return TL_OK;
  return damaged("a section");
}

/* The text at `at` of a string section, which ends inside it. */
static tl_status text_at(const cubin *c, const Elf64_Shdr *strings, uint64_t at, const char **out) {
  if (at >= strings->sh_size) return damaged("a name");
  const unsigned char *text = c->data + strings->sh_offset + at;
  if (memchr(text, 0, strings->sh_size - at) == NULL) return damaged("a name");
  *out = (const char *)text;
  return TL_OK;
}

static tl_status name_of(const cubin *c, const Elf64_Shdr *section, const char **out) {
  Elf64_Shdr names;
  TL_TRY(section_at(c, c->head.e_shstrndx, &names));
  return text_at(c, &names, section->sh_name, out);
}

/* The section of this name; *found is 0 when there is none. */
static tl_status find_section(const cubin *c, const char *name, Elf64_Shdr *out, int *found) {
  *found = 0;
  for (uint32_t i = 0; i < c->head.e_shnum; i++) {
    const char *other;
    TL_TRY(section_at(c, i, out));
    TL_TRY(name_of(c, out, &other));
    if (strcmp(name, other) != 0) continue;
    *found = 1;
    return TL_OK;
  }
  return TL_OK;
}

typedef struct attribute {
  uint32_t format, number, size; /* size: of the value, which stands at `value` */
  const unsigned char *value;
} attribute;

/* The attribute at *at, which moves behind it; 0 at the end or where the rest is too short. */
static int next_attribute(const cubin *c, const Elf64_Shdr *info, uint64_t *at, attribute *out) {
  if (*at + 4 > info->sh_size) return 0;
  const unsigned char *p = c->data + info->sh_offset + *at;
  *out = (attribute){.format = p[0], .number = p[1], .value = p + 2, .size = 2};
  *at += 4;
  if (p[0] != FORMAT_SIZED) return 1;
  out->size = p[2] | (uint32_t)p[3] << 8, out->value = p + 4;
  *at += (out->size + 3u) & ~3u;
  return *at <= info->sh_size;
}

static uint32_t word_at(const unsigned char *p) {
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The number in the symbol table of a kernel; 0 when it has none. */
static tl_status find_symbol(const cubin *c, const char *kernel, uint32_t *out) {
  Elf64_Shdr table, strings;
  int found;
  *out = 0;
  TL_TRY(find_section(c, ".symtab", &table, &found));
  if (!found) return damaged("the table of symbols");
  TL_TRY(section_at(c, table.sh_link, &strings));
  for (uint32_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); i++) {
    Elf64_Sym symbol;
    const char *name;
    memcpy(&symbol, c->data + table.sh_offset + i * sizeof symbol, sizeof symbol);
    TL_TRY(text_at(c, &strings, symbol.st_name, &name));
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && strcmp(name, kernel) == 0) *out = i;
  }
  return TL_OK;
}

/* Registers and local bytes; local ones are the frames of the kernel and of what it calls. */
static tl_status read_limits(const cubin *c, tl_cubin_kernel *k) {
  Elf64_Shdr info;
  attribute a;
  uint64_t at = 0;
  uint32_t symbol;
  int found;
  TL_TRY(find_symbol(c, k->name, &symbol));
  TL_TRY(find_section(c, ".nv.info", &info, &found));
  k->registers = -1;
  while (found && next_attribute(c, &info, &at, &a)) {
    if (a.format != FORMAT_SIZED || a.size != 8 || word_at(a.value) != symbol) continue;
    if (a.number == ATTRIBUTE_REGISTERS) k->registers = (int32_t)word_at(a.value + 4);
    if (a.number == ATTRIBUTE_FRAME) k->local = (int32_t)word_at(a.value + 4);
  }
  if (k->registers >= 0) return TL_OK;
  return tl_fail(TL_DEVICE, "a cubin is damaged: no registers of kernel %s", k->name);
}

/* Everything but the symbol's number. */
static void hash_info(const cubin *c, const Elf64_Shdr *info, SHA2_CTX *hash) {
  attribute a;
  uint64_t at = 0, from = 0;
  const unsigned char *data = c->data + info->sh_offset;
  while (next_attribute(c, info, &at, &a)) {
    const uint64_t skip =
        a.format == FORMAT_SIZED && a.number == ATTRIBUTE_PARAMETER_BANK && a.size >= 4 ? 4 : 0;
    const uint64_t value = (uint64_t)(a.value - data);
    SHA256Update(hash, data + from, value - from);
    SHA256Update(hash, a.value + skip, at - value - skip);
    from = at;
  }
  SHA256Update(hash, data + from, info->sh_size - from);
}

/* Adds one section to the hash: its kind and its size first, so that none can stand for another. */
static void hash_section(const cubin *c, const Elf64_Shdr *section, const char *kind,
                         SHA2_CTX *hash) {
  char head[96];
  const int length =
      snprintf(head, sizeof head, "%s %llu\n", kind, (unsigned long long)section->sh_size);
  SHA256Update(hash, (const uint8_t *)head, (size_t)length);
  if (strcmp(kind, ".nv.info") == 0)
    hash_info(c, section, hash);
  else
    SHA256Update(hash, c->data + section->sh_offset, section->sh_size);
}

/* ".text", ".nv.info", ".nv.constant0", .. when `name` is that section of the kernel. */
static int kind_of(const char *name, const char *kernel, char *out, size_t bytes) {
  const size_t length = strlen(name), tail = strlen(kernel);
  if (length <= tail + 1 || strcmp(name + length - tail, kernel) != 0 ||
      name[length - tail - 1] != '.')
    return 0;
  snprintf(out, bytes, "%.*s", (int)(length - tail - 1), name);
  return strcmp(out, ".text") == 0 || strcmp(out, ".nv.info") == 0 ||
         strncmp(out, ".nv.constant", 12) == 0;
}

/* Sections in the order of their kinds' first appearance in the file: ptxas keeps it. */
static tl_status hash_kernel(const cubin *c, tl_cubin_kernel *k) {
  SHA2_CTX hash;
  Elf64_Shdr section;
  char wanted[TL_CUBIN_NAME + 16], kind[64];
  int found;
  SHA256Init(&hash);
  for (uint32_t i = 0; i < c->head.e_shnum; i++) {
    const char *name;
    TL_TRY(section_at(c, i, &section));
    TL_TRY(name_of(c, &section, &name));
    if (kind_of(name, k->name, kind, sizeof kind)) hash_section(c, &section, kind, &hash);
  }
  SHA256End(&hash, k->sha256);
  snprintf(wanted, sizeof wanted, ".nv.shared.%s", k->name);
  TL_TRY(find_section(c, wanted, &section, &found));
  k->shared = found ? (int32_t)section.sh_entsize : 0;
  return read_limits(c, k);
}

tl_status tl_cubin_kernels(const void *image, int64_t bytes, tl_cubin_visit visit, void *context) {
  cubin c;
  TL_TRY(open_cubin(image, bytes, &c));
  for (uint32_t i = 0; i < c.head.e_shnum; i++) {
    Elf64_Shdr section;
    const char *name;
    tl_cubin_kernel k = {.local = 0};
    TL_TRY(section_at(&c, i, &section));
    TL_TRY(name_of(&c, &section, &name));
    if (strncmp(name, ".text.", 6) != 0) continue;
    if (strlen(name + 6) >= sizeof k.name)
      return tl_fail(TL_DEVICE, "kernel %s: the name is too long", name + 6);
    memcpy(k.name, name + 6, strlen(name + 6) + 1);
    TL_TRY(hash_kernel(&c, &k));
    TL_TRY(visit(context, &k));
  }
  return TL_OK;
}

/* The strings of the note follow each other: ptxas, "Cuda .. V13.0.88", "Build ..", flags. */
tl_status tl_cubin_tool_of(const void *image, int64_t bytes, tl_cubin_tool *out) {
  cubin c;
  Elf64_Shdr note;
  int found;
  TL_TRY(open_cubin(image, bytes, &c));
  TL_TRY(find_section(&c, ".note.nv.tkinfo", &note, &found));
  *out = (tl_cubin_tool){.compiler = "unknown"};
  const char *texts[4] = {"", "", "", ""}, *text = NULL;
  uint64_t at = 0;
  for (; found && at + 6 <= note.sh_size && text == NULL; at++)
    if (memcmp(c.data + note.sh_offset + at, "ptxas", 6) == 0)
      text = (const char *)c.data + note.sh_offset + at--;
  for (int i = 0; i < 4 && text != NULL; i++) {
    if (text_at(&c, &note, at, &texts[i]) != TL_OK) break;
    at += strlen(texts[i]) + 1;
  }
  const char *version = strstr(texts[1], ", V");
  if (version != NULL) snprintf(out->compiler, sizeof out->compiler, "%s", version + 3);
  int length = snprintf(out->flags, sizeof out->flags, "%s", texts[3]);
  if (length >= (int)sizeof out->flags) length = (int)sizeof out->flags - 1;
  while (length > 0 && out->flags[length - 1] == ' ') out->flags[--length] = '\0';
  return TL_OK;
}
