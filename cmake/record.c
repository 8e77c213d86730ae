/* record.c - writes the table of the machine code in some cubins: record OUT FILE...
**
** A file is called <image>.sm_<arch>.cubin, as the build names them. See runtime/manifest.h.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/manifest.h"

enum { IMAGES_MAX = 256 };

/* All of a file; its bytes stay until the program ends. */
static tl_status read_image(const char *path, tl_cuda_image *out) {
  const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
  const char *dot = strstr(name, ".sm_");
  FILE *file = fopen(path, "rb");
  if (dot == NULL || file == NULL || fseek(file, 0, SEEK_END) != 0)
    return tl_fail(TL_IO, "%s cannot be read as <image>.sm_<arch>.cubin", path);
  const long bytes = ftell(file);
  unsigned char *data = bytes > 0 ? malloc((size_t)bytes) : NULL;
  rewind(file);
  if (data == NULL || fread(data, 1, (size_t)bytes, file) != (size_t)bytes)
    return tl_fail(TL_IO, "%s cannot be read", path);
  fclose(file);
  *out = (tl_cuda_image){.name = strndup(name, (size_t)(dot - name)),
                         .arch = atoi(dot + 4),
                         .start = data,
                         .end = data + bytes};
  return TL_OK;
}

static tl_status write_record(const char *path, int count, char **files) {
  static tl_cuda_image images[IMAGES_MAX];
  char *text;
  if (count > IMAGES_MAX) return tl_fail(TL_ARGUMENT, "%d cubins; there is room for 256", count);
  for (int i = 0; i < count; i++) TL_TRY(read_image(files[i], &images[i]));
  TL_TRY(tl_manifest_record(images, count, &text));
  FILE *to = fopen(path, "w");
  const int written = to != NULL && fputs(text, to) >= 0;
  free(text);
  if (to == NULL || fclose(to) != 0 || !written)
    return tl_fail(TL_IO, "%s cannot be written", path);
  return TL_OK;
}

int main(int argc, char **argv) {
  if (argc >= 2 && write_record(argv[1], argc - 2, argv + 2) == TL_OK) return 0;
  fprintf(stderr, "record: %s\n", argc < 2 ? "record OUT FILE..." : tl_last_error());
  return 1;
}
