/* trace_cuda.c - kernels between instructions, and what they leave. */
#include "trace_cuda.h"

#include <stdlib.h>

#include "../kernels/device_args.h"
#include "../kernels/trace/trace_args.h"
#include "memory.h"

enum { SPAN = 4096, LINE = 64 }; /* as in hash.c */
/* Stamps of an instruction: before it, after it, and after its hashes. The last is where the next
** one begins if it follows on the same stream and waits for nobody: the first is left out then. */
enum { BEGUN, ENDED, HASHED, STAMPS };

struct tl_gpu_trace {
  tl_cuda *cuda;
  const tl_program *program;
  tl_trace *trace;
  uint64_t *device, *host;   /* hashes by output, then stamps: STAMPS an instruction */
  tl_trace_record *launches; /* by instruction: what its kernels were */
  int32_t *begins;           /* by instruction: the stamp at which it began */
  int64_t launched;          /* kernels queued before the instruction under way */
  void *stream;              /* of the instruction `before`, which is -1 where a section begins */
  int32_t before;
  int32_t hash_count, words;
};

#define TRY_CUDA(t, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((t)->cuda), tl_cuda_calls((t)->cuda)->call, what))

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status allocate(tl_gpu_trace *t) {
  const size_t bytes = (size_t)t->words * sizeof(uint64_t);
  void *device = NULL, *host = NULL;
  t->launches = calloc((size_t)t->program->instruction_count + 1, sizeof *t->launches);
  t->begins = calloc((size_t)t->program->instruction_count + 1, sizeof *t->begins);
  if (t->launches == NULL || t->begins == NULL) return tl_fail(TL_MEMORY, "no room for a trace");
  TL_TRY(tl_cuda_alloc(t->cuda, (int64_t)bytes + 64, &device));
  t->device = device;
  TRY_CUDA(t, "pinned memory", host_alloc(&host, bytes + 64, TL_CUDA_HOST_PORTABLE));
  t->host = host;
  tl_memory_note(TL_MEMORY_TRACE, 2 * (int64_t)bytes);
  return TL_OK;
}

tl_status tl_gpu_trace_open(tl_cuda *cuda, const tl_program *program, tl_trace *trace,
                            tl_gpu_trace **out) {
  tl_gpu_trace *t = calloc(1, sizeof *t);
  if (t == NULL) return tl_fail(TL_MEMORY, "no room for a trace");
  t->cuda = cuda, t->program = program, t->trace = trace;
  tl_trace_hashes(trace, &t->hash_count);
  t->words = t->hash_count + STAMPS * program->instruction_count;
  const tl_status status = allocate(t);
  if (status == TL_OK) {
    *out = t;
    return TL_OK;
  }
  tl_gpu_trace_close(t);
  return status;
}

void tl_gpu_trace_close(tl_gpu_trace *t) {
  if (t == NULL) return;
  if (t->host != NULL) {
    tl_cuda_calls(t->cuda)->host_free(t->host);
    tl_memory_note(TL_MEMORY_TRACE, -2 * (int64_t)t->words * (int64_t)sizeof(uint64_t));
  }
  tl_cuda_free(t->cuda, t->device);
  free(t->launches);
  free(t->begins);
  free(t);
}

tl_status tl_gpu_trace_begin(tl_gpu_trace *t) {
  t->before = -1;
  TRY_CUDA(
      t, "hashes",
      fill(address(t->device), 0, (size_t)t->words * sizeof(uint64_t), tl_cuda_stream(t->cuda)));
  return TL_OK;
}

static uint64_t *stamp_of(tl_gpu_trace *t, int32_t instruction, int which) {
  return t->device + t->hash_count + STAMPS * instruction + which;
}

static tl_status launch(tl_cuda *cuda, void *stream, const char *kernel, int32_t blocks,
                        const void *args) {
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)blocks,  1, 1},
        .threads = {TL_DEVICE_THREADS, 1, 1}
  };
  return tl_cuda_launch_on(cuda, stream, kernel, &grid, args);
}

static tl_status queue_stamp(tl_gpu_trace *t, void *stream, uint64_t *stamp, uint64_t *behind) {
  const tl_trace_stamp_args args = {.stamp = stamp, .behind = behind};
  return launch(t->cuda, stream, "trace_stamp", 1, &args);
}

tl_status tl_gpu_trace_before(tl_gpu_trace *t, int32_t instruction, void *stream) {
  const int waits = t->program->instructions[instruction].waits.count > 0;
  if (t->before >= 0 && t->stream == stream && !waits) {
    t->begins[instruction] = STAMPS * t->before + HASHED;
  } else {
    t->begins[instruction] = STAMPS * instruction + BEGUN;
    TL_TRY(queue_stamp(t, stream, stamp_of(t, instruction, BEGUN), NULL));
  }
  t->before = instruction;
  t->stream = stream;
  t->launched = tl_cuda_launched(t->cuda, NULL);
  return TL_OK;
}

void tl_gpu_trace_launch(tl_cuda *cuda, int64_t before, tl_trace_record *out) {
  tl_cuda_grid grid;
  out->launches = (uint32_t)(tl_cuda_launched(cuda, &grid) - before);
  if (out->launches == 0) return;
  for (int i = 0; i < 3; i++) out->blocks[i] = grid.blocks[i], out->threads[i] = grid.threads[i];
  out->shared = grid.shared;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A part as the kernel takes it: `hash` is device memory. */
static tl_trace_part part_of(const tl_hash_part *p, const tl_view *view, uint64_t *hash) {
  const int whole = p->cols == p->cols_full && p->pitch == p->cols;
  tl_trace_part a = {.data = view->data, .hash = hash};
  a.name = p->name, a.cols = p->cols, a.pitch = p->pitch, a.row_first = p->row_first;
  a.piece_rows = p->piece_rows, a.piece_stride = p->piece_stride;
  a.col_first = p->col_first, a.cols_full = p->cols_full;
  a.size = (int16_t)tl_dtype_bytes(view->dtype), a.sampled = p->sampled != 0;
  /* pieces are of one length where rows are complete: the last one would be shorter otherwise */
  const int pieces = whole && p->rows % p->piece_rows == 0;
  a.length = pieces ? p->piece_rows * p->cols : p->cols;
  a.runs = pieces ? p->rows / p->piece_rows : p->rows;
  a.slots = p->sampled ? ((a.length + SPAN - 1) / SPAN + 1) * LINE : a.length;
  const int64_t blocks = (a.runs * a.slots + TL_DEVICE_THREADS - 1) / TL_DEVICE_THREADS;
  a.blocks = (int32_t)least(blocks, p->sampled ? TL_TRACE_BLOCKS : TL_TRACE_BLOCKS_FULL);
  return a;
}

/* Hashes outputs from *next on, as many as one launch takes. */
static tl_status queue_hash(tl_gpu_trace *t, int32_t instruction, const tl_view *views,
                            void *stream, int32_t *next) {
  int32_t first, count, blocks = 0, begun = *next > 0;
  const tl_trace_output *outputs = tl_trace_outputs_of(t->trace, instruction, &first, &count);
  const int32_t out = t->program->instructions[instruction].out.first;
  tl_trace_args a = {.behind = stamp_of(t, instruction, HASHED)};
  if (!begun) a.stamp = stamp_of(t, instruction, ENDED);
  for (; *next < count && a.count < TL_TRACE_PARTS; ++*next) {
    const tl_trace_output *o = &outputs[*next];
    if (o->part.rows == 0) continue;
    a.parts[a.count] = part_of(&o->part, &views[out + o->position], t->device + first + *next);
    blocks += a.parts[a.count++].blocks;
  }
  if (blocks > 0) return launch(t->cuda, stream, "trace_hash", blocks, &a);
  return begun ? TL_OK : queue_stamp(t, stream, a.stamp, a.behind);
}

tl_status tl_gpu_trace_after(tl_gpu_trace *t, int32_t instruction, const tl_view *views,
                             void *stream) {
  int32_t first, count, next = 0;
  tl_trace_outputs_of(t->trace, instruction, &first, &count);
  tl_gpu_trace_launch(t->cuda, t->launched, &t->launches[instruction]);
  do {
    TL_TRY(queue_hash(t, instruction, views, stream, &next));
  } while (next < count);
  return TL_OK;
}

tl_status tl_gpu_trace_end(tl_gpu_trace *t) {
  TRY_CUDA(t, "copy of hashes",
           copy_out(t->host, address(t->device), (size_t)t->words * sizeof(uint64_t),
                    tl_cuda_stream(t->cuda)));
  return TL_OK;
}

void tl_gpu_trace_take(tl_gpu_trace *t, int32_t first, int32_t count, int64_t start_ns) {
  const uint64_t *stamps = t->host + t->hash_count;
  const int64_t base = count > 0 ? (int64_t)stamps[t->begins[first]] : 0;
  for (int32_t i = first; i < first + count; i++) {
    tl_trace_record call = t->launches[i];
    int32_t output, outputs;
    call.calls = 1;
    call.start_ns = start_ns + (int64_t)stamps[t->begins[i]] - base;
    call.end_ns = start_ns + (int64_t)stamps[STAMPS * i + ENDED] - base;
    tl_trace_note(t->trace, i, &call);
    tl_trace_outputs_of(t->trace, i, &output, &outputs);
    for (int32_t k = output; k < output + outputs; k++) tl_trace_set_hash(t->trace, k, t->host[k]);
  }
}

tl_status tl_gpu_hash_part(tl_cuda *cuda, const tl_hash_part *part, const tl_view *view,
                           void *word) {
  const uint64_t at = address(word);
  TL_TRY(tl_cuda_enter(cuda));
  tl_trace_args a = {.count = 1, .parts = {part_of(part, view, word)}};
  TL_TRY(tl_cuda_check(tl_cuda_calls(cuda),
                       tl_cuda_calls(cuda)->fill(at, 0, sizeof(uint64_t), tl_cuda_stream(cuda)),
                       "a hash"));
  return launch(cuda, tl_cuda_stream(cuda), "trace_hash", a.parts[0].blocks, &a);
}
