/* gemm_core.h - one routine under all three products; private to gemm/.
**
**   C (rows, columns of part i) = tree over leaves of a chain over runs of k
**
** An operator describes where its factors lie (tl_gemm); an engine knows one arithmetic on one
** level of processor. Both are plain tables.
*/
#ifndef TL_GEMM_CORE_H
#define TL_GEMM_CORE_H

#include "../panels.h"
#include "gemm.h"

enum { TL_GEMM_DEPTH = 256 }; /* positions of k that are packed at a time; a multiple of 16 */

/* Element (i, k) of a factor is data[i * stride + k * k_stride]; i is a row of A, a column of B. In
** panels, i / 64 times panel_stride and i % 64 times stride take the place of i * stride. */
typedef struct tl_gemm_source {
  const void *data;
  int64_t stride, k_stride;
  int64_t panel_stride; /* 0: not in panels */
} tl_gemm_source;

/* A stretch of k over which both factors have constant strides. */
typedef struct tl_gemm_run {
  tl_gemm_source a, b;
  int64_t count;
} tl_gemm_run;

/* What a sum does with what is already there. */
typedef enum tl_gemm_start {
  TL_GEMM_ZERO,   /* forgets it: the chain starts from +0 */
  TL_GEMM_RESUME, /* the chain resumes from it */
  TL_GEMM_ADD     /* the chain starts from +0, and its end is added to it */
} tl_gemm_start;

typedef struct tl_gemm_engine {
  tl_dtype dtype;
  int32_t rows, columns; /* of the largest tile */
  int32_t step;          /* k positions of one step: 1, or 16 */
  int64_t row_step_bytes,
      column_step_bytes; /* of one step in a packed panel of most rows, columns */
  /* Before packing a panel of `positions`; NULL where every position is packed anyway. */
  void (*clear_rows)(void *panel, int64_t positions);
  void (*clear_columns)(void *panel, int64_t positions);
  /* Packs k_count values of k for `count` rows (columns) from `position` of the panel on. A panel
  ** of rows has room for `count` rows, one of columns always for engine->columns. */
  void (*pack_rows)(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                    void *panel);
  void (*pack_columns)(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                       void *panel);
  /* c (rows, columns), rows `stride` apart: the chain over `positions`. */
  void (*tile)(const void *a, const void *b, int64_t positions, int32_t rows, int32_t columns,
               float *c, int64_t stride, tl_gemm_start start);
} tl_gemm_engine;

typedef struct tl_gemm tl_gemm;
struct tl_gemm {
  int64_t rows;          /* of every output */
  int32_t parts;         /* outputs: out[part] (rows, N_part) */
  const tl_view *out;    /* f32 or bf16 */
  const tl_view *bias;   /* bias[part] (N_part), or NULL */
  int32_t in_panels;     /* B is */
  int64_t leaves;        /* power of two */
  int64_t runs;          /* of each leaf */
  int32_t run_is_padded; /* each run begins a new step */
  tl_gemm_start start;   /* of the outputs; not ZERO: f32, RESUME: one leaf too */
  /* Run `run` of leaf `leaf` of output `part`. */
  void (*run)(const tl_gemm *gemm, int32_t part, int64_t leaf, int64_t run, tl_gemm_run *out);
  const tl_call *call;
  tl_dtype dtype; /* of both factors */
};

/* Checks a call and describes it; a description keeps pointers into the call. Launchers for a GPU
** begin with it too (gemm_cuda.c). */
tl_status tl_gemm_of_linear(const tl_call *call, tl_gemm *gemm);
tl_status tl_gemm_of_linear_grad_input(const tl_call *call, tl_gemm *gemm);
tl_status tl_gemm_of_linear_grad_weight(const tl_call *call, tl_gemm *gemm);

void tl_gemm_compute(const tl_gemm *gemm, tl_team *team);
/* The same where rows are few and factors f32 along k (gemm_few.c); 0: it is not for this case, and
** nothing was done. */
int32_t tl_gemm_few_rows(const tl_gemm *gemm, tl_team *team);
/* The same where B lies in panels (gemm_panels.c). */
int32_t tl_gemm_few_panels(const tl_gemm *gemm, tl_team *team);

/* The engine for factors of this dtype on this processor (kernels/simd.h). */
const tl_gemm_engine *tl_gemm_engine_for(tl_dtype dtype);

extern const tl_gemm_engine tl_gemm_f32_portable, tl_gemm_f32_avx2, tl_gemm_f32_avx512;
extern const tl_gemm_engine tl_gemm_bf16;

/* A rectangle of one output. */
typedef struct tl_gemm_tile {
  int32_t part;
  int64_t row, rows, column, columns;
} tl_gemm_tile;

/* sum[i] = sum[i] + other[i] */
void tl_gemm_add(float *sum, const float *other, int64_t count);
/* c (rows, columns), rows `stride` apart, goes to the output: round(c + bias), round(c), or with
** TL_GEMM_ADD added to it. */
void tl_gemm_store(const tl_gemm *gemm, const tl_gemm_tile *tile, const float *c, int64_t stride);
/* What the output (f32) holds goes to c. */
void tl_gemm_load(const tl_gemm *gemm, const tl_gemm_tile *tile, float *c, int64_t stride);

/* Some output columns of a part: panel * TL_PANEL and those that follow it. `stack` is the worker's
** scratch. */
typedef void (*tl_gemm_panel_task)(const void *context, int32_t part, int64_t panel, float *stack);
/* Calls `compute` for every panel of every part, runs of neighbours by the workers of a team.
** `depth`: rows of f32 weights of a panel; fewer than 64 KiB are not worth a helper. */
void tl_gemm_for_columns(const tl_gemm *gemm, tl_team *team, int64_t depth,
                         tl_gemm_panel_task compute, const void *context);

/* f32 panels of any width: (k, width), zeros from `count` on. */
void tl_gemm_pack_f32(tl_gemm_source source, int32_t count, int32_t width, int64_t k_count,
                      float *out);

#endif
