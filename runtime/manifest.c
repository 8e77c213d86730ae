/* manifest.c - writes the table of kernels, finds rows in it, compares. */
#include "manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_BYTES = 512, NAMES_MAX = 4 };

static const char head_text[] =
    "# manifest.yaml - the machine code of every kernel. Written by ./tl manifest --update.\n"
    "#\n"
    "#   sha256     of the kernel's .text, .nv.info and .nv.constant* sections (runtime/cubin.h)\n"
    "#   registers  of a thread; shared: static bytes of a block\n"
    "#   local      bytes of a thread in memory; 0: nothing is spilled\n";

/* --- writing ---------------------------------------------------------------------------------- */

typedef struct writer {
  FILE *to;
  const tl_cuda_image *image;
} writer;

static tl_status write_kernel(void *context, const tl_cubin_kernel *k) {
  const writer *w = context;
  fprintf(
      w->to,
      "- { image: %s, arch: %d, kernel: %s, registers: %d, shared: %d, local: %d, sha256: %s }\n",
      w->image->name, w->image->arch, k->name, k->registers, k->shared, k->local, k->sha256);
  return TL_OK;
}

static tl_status write_all(FILE *to, const tl_cuda_image *images, int32_t count) {
  fprintf(to, "%simages:%s\n", head_text, count == 0 ? " []" : "");
  for (int32_t i = 0; i < count; i++) {
    tl_cubin_tool tool;
    TL_TRY(tl_cubin_tool_of(images[i].start, images[i].end - images[i].start, &tool));
    fprintf(to, "- { image: %s, arch: %d, compiler: \"%s\", flags: \"%s\" }\n", images[i].name,
            images[i].arch, tool.compiler, tool.flags);
  }
  fprintf(to, "kernels:%s\n", count == 0 ? " []" : "");
  for (int32_t i = 0; i < count; i++) {
    writer w = {.to = to, .image = &images[i]};
    TL_TRY(tl_cubin_kernels(images[i].start, images[i].end - images[i].start, write_kernel, &w));
  }
  return TL_OK;
}

tl_status tl_manifest_record(const tl_cuda_image *images, int32_t count, char **out) {
  char *text = NULL;
  size_t bytes;
  FILE *to = open_memstream(&text, &bytes);
  if (to == NULL) return tl_fail(TL_MEMORY, "no room for a manifest");
  const tl_status status = write_all(to, images, count);
  if (fclose(to) != 0 || status != TL_OK) {
    free(text);
    return status != TL_OK ? status : tl_fail(TL_MEMORY, "no room for a manifest");
  }
  *out = text;
  return TL_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct row {
  char image[TL_CUBIN_NAME];
  int32_t arch;
  tl_cubin_kernel kernel; /* of a kernel's row */
  tl_cubin_tool tool;     /* of an image's row */
} row;

/* The next line that is a row, and the text behind it; NULL at the end. */
static const char *next_row(const char *text, char out[ROW_BYTES]) {
  while (*text != '\0') {
    const char *end = strchr(text, '\n');
    const size_t length = end == NULL ? strlen(text) : (size_t)(end - text);
    const char *line = text;
    text += length + (end != NULL);
    if (length >= ROW_BYTES || strncmp(line, "- {", 3) != 0) continue;
    memcpy(out, line, length);
    out[length] = '\0';
    return text;
  }
  return NULL;
}

static int read_kernel(const char *line, row *r) {
  return sscanf(line,
                "- { image: %127[^,], arch: %d, kernel: %127[^,], registers: %d, shared: %d, "
                "local: %d, sha256: %64[0-9a-f] }",
                r->image, &r->arch, r->kernel.name, &r->kernel.registers, &r->kernel.shared,
                &r->kernel.local, r->kernel.sha256) == 7;
}

static int read_image(const char *line, row *r) {
  return sscanf(line, "- { image: %127[^,], arch: %d, compiler: \"%31[^\"]\"", r->image, &r->arch,
                r->tool.compiler) == 3;
}

static int is_of(const row *r, const tl_cuda_image *image) {
  return r->arch == image->arch && strcmp(r->image, image->name) == 0;
}

/* Whether a line may be a row of the image: reading all others' takes longer than hashing. */
static int begins_with(const char *line, const tl_cuda_image *image) {
  static const char head[] = "- { image: ";
  const size_t length = strlen(image->name);
  return strncmp(line, head, sizeof head - 1) == 0 &&
         strncmp(line + sizeof head - 1, image->name, length) == 0 &&
         line[sizeof head - 1 + length] == ',';
}

/* The compiler of an image in a table, or "". */
static void compiler_in(const char *text, const tl_cuda_image *image, char out[32]) {
  char line[ROW_BYTES];
  row r;
  out[0] = '\0';
  while ((text = next_row(text, line)) != NULL)
    if (begins_with(line, image) && read_image(line, &r) && is_of(&r, image))
      memcpy(out, r.tool.compiler, 32);
}

/* --- comparing -------------------------------------------------------------------------------- */

typedef struct check {
  const char *table;
  const tl_cuda_image *image;
  int32_t found, refused;
  char names[NAMES_MAX][TL_CUBIN_NAME + 48];
} check;

static void refuse(check *c, const char *kernel, const char *why) {
  if (c->refused < NAMES_MAX)
    snprintf(c->names[c->refused], sizeof c->names[0], "%s (%s)", kernel, why);
  c->refused++;
}

static tl_status check_kernel(void *context, const tl_cubin_kernel *k) {
  check *c = context;
  char line[ROW_BYTES];
  row r;
  for (const char *text = c->table; (text = next_row(text, line)) != NULL;) {
    if (!begins_with(line, c->image) || !read_kernel(line, &r) || !is_of(&r, c->image) ||
        strcmp(r.kernel.name, k->name) != 0)
      continue;
    c->found++;
    if (strcmp(r.kernel.sha256, k->sha256) != 0)
      refuse(c, k->name, "other machine code");
    else if (r.kernel.registers != k->registers || r.kernel.shared != k->shared ||
             r.kernel.local != k->local)
      refuse(c, k->name, "other registers or memory");
    return TL_OK;
  }
  refuse(c, k->name, "new");
  return TL_OK;
}

static tl_status find_kernel(void *context, const tl_cubin_kernel *k) {
  row *r = context;
  if (strcmp(r->kernel.name, k->name) == 0) r->arch = -1;
  return TL_OK;
}

static int32_t rows_of(const char *text, const tl_cuda_image *image) {
  char line[ROW_BYTES];
  int32_t count = 0;
  row r;
  while ((text = next_row(text, line)) != NULL)
    count += begins_with(line, image) && read_kernel(line, &r) && is_of(&r, image);
  return count;
}

/* Rows of the image whose kernel it has no more. Each row has to be looked for among all kernels,
** which hashes them again: only where there is a row more than were found. */
static tl_status check_missing(check *c) {
  const tl_cuda_image *image = c->image;
  char line[ROW_BYTES];
  row r;
  if (rows_of(c->table, image) == c->found) return TL_OK;
  for (const char *text = c->table; (text = next_row(text, line)) != NULL;) {
    if (!begins_with(line, image) || !read_kernel(line, &r) || !is_of(&r, image)) continue;
    TL_TRY(tl_cubin_kernels(image->start, image->end - image->start, find_kernel, &r));
    if (r.arch >= 0) refuse(c, r.kernel.name, "missing");
  }
  return TL_OK;
}

static tl_status complain(const check *c, const char *table) {
  char names[NAMES_MAX * sizeof c->names[0] + 64];
  size_t length = 0;
  for (int32_t i = 0; i < c->refused && i < NAMES_MAX; i++)
    length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i == 0 ? "" : ", ",
                               c->names[i]);
  if (c->refused > NAMES_MAX)
    snprintf(names + length, sizeof names - length, " and %d more", c->refused - NAMES_MAX);
  return tl_fail(TL_DEVICE,
                 "kernels of %s, sm_%d, are not those of %s: %s; if the change is meant, "
                 "./tl manifest --update, and run the GPU tests again; else build again",
                 c->image->name, c->image->arch, table, names);
}

tl_status tl_manifest_check(const tl_manifest *manifest, const tl_cuda_image *image,
                            char other[32]) {
  const int64_t bytes = image->end - image->start;
  tl_cubin_tool tool;
  check c = {.table = manifest->verified, .image = image};
  TL_TRY(tl_cubin_tool_of(image->start, bytes, &tool));
  compiler_in(manifest->verified, image, other);
  const int own = other[0] != '\0' && strcmp(other, tool.compiler) != 0;
  if (own)
    c.table = manifest->own;
  else
    other[0] = '\0';
  TL_TRY(tl_cubin_kernels(image->start, bytes, check_kernel, &c));
  TL_TRY(check_missing(&c));
  return c.refused == 0 ? TL_OK
                        : complain(&c, own ? "the build's record" : "kernels/manifest.yaml");
}
