/* cublaslt.c - imitates what Tidelock uses of libcublasLt, on host memory, and lies where it is
** told to: gemm_library_spec.lua. f32 only.
**
** It offers three ways: algorithm 24, which is not of the class; 55; and 20 with k in three parts,
** which is of the class once it is made whole. IMITATION=55 lets 55 add one element of the output,
** (2, 2), from the last k to the first; IMITATION=both lets 20 do so too.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../../runtime/cublaslt.h"

enum { WAYS = 3 };

typedef struct product {
  int32_t turned[2];
} product;

typedef struct layout { /* columns first */
  int type;
  int64_t rows, columns, stride;
  int32_t parts;
  int64_t step; /* elements from part to part */
} layout;

#define LT(name, symbol, arguments) int symbol arguments;
#include "../../../runtime/cublaslt.def"
#undef LT

static const int32_t ids[WAYS] = {24, 55, 20};

int cublasLtCreate(void **handle) {
  *handle = malloc(1);
  return *handle == NULL;
}
int cublasLtDestroy(void *handle) {
  free(handle);
  return 0;
}

int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
  *out = calloc(1, sizeof(product));
  return *out == NULL || compute != TL_CUBLASLT_COMPUTE_F32 || scale != TL_CUBLASLT_F32;
}
int cublasLtMatmulDescSetAttribute(void *p, int attribute, const void *value, size_t bytes) {
  const int which = attribute == TL_CUBLASLT_PRODUCT_TURN_B;
  if (bytes != 4 || (!which && attribute != TL_CUBLASLT_PRODUCT_TURN_A)) return 1;
  memcpy(&((product *)p)->turned[which], value, bytes);
  return 0;
}
int cublasLtMatmulDescDestroy(void *p) {
  free(p);
  return 0;
}

int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns,
                               int64_t stride) {
  layout *l = malloc(sizeof *l);
  if (l == NULL) return 1;
  *l = (layout){type, (int64_t)rows, (int64_t)columns, stride, 1, 0};
  *out = l;
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(void *p, int attribute, const void *value, size_t bytes) {
  layout *l = p;
  if (attribute == TL_CUBLASLT_LAYOUT_BATCH && bytes == sizeof l->parts)
    memcpy(&l->parts, value, bytes);
  else if (attribute == TL_CUBLASLT_LAYOUT_STRIDE && bytes == sizeof l->step)
    memcpy(&l->step, value, bytes);
  else
    return 1;
  return 0;
}
int cublasLtMatrixLayoutDestroy(void *l) {
  free(l);
  return 0;
}

int cublasLtMatmulPreferenceCreate(void **out) {
  *out = calloc(1, 4);
  return *out == NULL;
}
int cublasLtMatmulPreferenceSetAttribute(void *wish, int attribute, const void *value,
                                         size_t bytes) {
  if (attribute == TL_CUBLASLT_WISH_REDUCTIONS) memcpy(wish, value, bytes);
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void *wish) {
  free(wish);
  return 0;
}

/* words: id, parts of k, how they are added. Without leave to split k, 20 is not offered. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *p, void *a, void *b, void *c, void *d,
                                   void *wish, int most, tl_cublaslt_found *out, int *count) {
  const layout *l = a;
  (void)handle, (void)p, (void)b, (void)c, (void)d;
  *count = 0;
  for (int i = 0; i < WAYS && *count < most && l->type == TL_CUBLASLT_F32; i++) {
    const uint64_t split = ids[i] == 20;
    if (split && *(uint32_t *)wish == 0) continue;
    out[(*count)++] =
        (tl_cublaslt_found){.way = {{(uint64_t)ids[i], split ? 3 : 1, split ? 1 : 0}}};
  }
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const tl_cublaslt_way *way, int attribute, void *value,
                                         size_t bytes, size_t *written) {
  const int32_t v = (int32_t)way->words[attribute == 0 ? 0 : attribute - 1];
  *written = bytes;
  memcpy(value, &v, sizeof v);
  return bytes != sizeof v;
}
int cublasLtMatmulAlgoConfigSetAttribute(tl_cublaslt_way *way, int attribute, const void *value,
                                         size_t bytes) {
  int32_t v;
  memcpy(&v, value, sizeof v);
  way->words[attribute == 0 ? 0 : attribute - 1] = (uint64_t)v;
  return bytes != sizeof v;
}
int cublasLtMatmulAlgoCheck(void *handle, void *p, void *a, void *b, void *c, void *d,
                            const tl_cublaslt_way *way, tl_cublaslt_found *out) {
  (void)handle, (void)p, (void)a, (void)b, (void)c, (void)d;
  *out = (tl_cublaslt_found){.way = *way};
  return 0;
}

static int lies(const tl_cublaslt_way *way) {
  const char *who = getenv("IMITATION");
  if (who == NULL) return 0;
  return strcmp(who, "both") == 0 || (strcmp(who, "55") == 0 && way->words[0] == 55);
}

/* One sum over k, in as many parts as the way says, from the last k on where `back` is set. */
static float sum_of(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t depth,
                    int64_t parts, int back) {
  float sum = 0;
  for (int64_t part = 0; part < parts; part++) {
    float chain = 0;
    for (int64_t i = part * depth / parts; i < (part + 1) * depth / parts; i++) {
      const int64_t k = back ? depth - 1 - i : i;
      chain = fmaf(a[k * a_step], b[k * b_step], chain);
    }
    sum = part == 0 ? chain : sum + chain;
  }
  return sum;
}

static void multiply(const int32_t *turned, const layout *la, const float *a, const layout *lb,
                     const float *b, float beta, const layout *lo, float *d,
                     const tl_cublaslt_way *way) {
  const int64_t a_step = turned[0] ? 1 : la->stride, b_step = turned[1] ? lb->stride : 1;
  const int64_t depth = turned[0] ? la->rows : la->columns;
  for (int64_t j = 0; j < lo->columns; j++)
    for (int64_t i = 0; i < lo->rows; i++) {
      const float *x = a + i * (turned[0] ? la->stride : 1);
      const float *y = b + j * (turned[1] ? 1 : lb->stride);
      const int back = i == 2 && j == 2 && lies(way);
      const float sum = sum_of(x, a_step, y, b_step, depth, (int64_t)way->words[1], back);
      float *to = d + j * lo->stride + i;
      *to = beta != 0 ? *to + sum : sum;
    }
}

int cublasLtMatmul(void *handle, void *p, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                   void *d, void *d_layout, const tl_cublaslt_way *way, void *workspace,
                   size_t bytes, void *stream) {
  const layout *la = a_layout, *lb = b_layout, *lo = d_layout;
  const int32_t *turned = ((product *)p)->turned;
  (void)handle, (void)alpha, (void)c, (void)c_layout, (void)workspace, (void)bytes, (void)stream;
  if ((turned[0] ? la->rows : la->columns) != (turned[1] ? lb->columns : lb->rows)) return 7;
  if (la->parts != lo->parts || lb->parts != lo->parts) return 7;
  for (int32_t i = 0; i < lo->parts; i++)
    multiply(turned, la, (const float *)a + i * la->step, lb, (const float *)b + i * lb->step,
             *(const float *)beta, lo, (float *)d + i * lo->step, way);
  return 0;
}
