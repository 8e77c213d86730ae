/* trace_cuda.c - kernels beside the instructions, and what they leave. */
#include "trace_cuda.h"

#include <stdlib.h>

#include "../kernels/device_args.h"
#include "../kernels/trace/trace_args.h"
#include "memory.h"

enum { SPAN = 4096, LINE = 64 }; /* as in hash.c */
enum {
  FLUSHES = 32, /* hash launches that can be waited for one by one */
  LOOK = 8      /* instructions: hashes of what one of these overwrites do not wait for company */
};

/* Memory that a hash reads: of the launch `flush`, counted from the section's begin. */
typedef struct reading {
  uint64_t first, end;
  int32_t flush;
} reading;

struct tl_gpu_trace {
  tl_cuda *cuda;
  const tl_program *program;
  tl_trace *trace;
  void *side;              /* the stream of hashes */
  void *clocks[2];         /* those of stamps, for either stream of a section */
  void *ended;             /* event: an instruction has ended */
  void *hashed[FLUSHES];   /* events: launch i, and those before it, have ended; i modulo FLUSHES */
  uint64_t *device, *host; /* hashes by output; the section's begin; ends by instruction */
  tl_trace_record *launches; /* by instruction: what its kernels were */
  int32_t *followed;         /* by instruction: the one before it on its stream; -1: none */
  int64_t launched;          /* kernels queued before the instruction under way */
  void *streams[2];          /* of a section, and the last instruction on each */
  int32_t latest[2];
  int32_t waited[2];     /* the last hash launch that either stream has waited for; -1: none */
  tl_trace_args waiting; /* outputs of the next hash launch */
  int32_t waiting_blocks;
  int32_t flushes;
  reading *readings;
  int32_t reading_count;
  int32_t hash_count, words;
};

#define TRY_CUDA(t, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((t)->cuda), tl_cuda_calls((t)->cuda)->call, what))

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status allocate(tl_gpu_trace *t) {
  const size_t bytes = (size_t)t->words * sizeof(uint64_t);
  void *device = NULL, *host = NULL;
  t->launches = calloc((size_t)t->program->instruction_count + 1, sizeof *t->launches);
  t->followed = calloc((size_t)t->program->instruction_count + 1, sizeof *t->followed);
  t->readings = calloc((size_t)t->hash_count + 1, sizeof *t->readings);
  if (t->launches == NULL || t->followed == NULL || t->readings == NULL)
    return tl_fail(TL_MEMORY, "no room for a trace");
  TL_TRY(tl_cuda_alloc(t->cuda, (int64_t)bytes + 64, &device));
  t->device = device;
  TRY_CUDA(t, "pinned memory", host_alloc(&host, bytes + 64, TL_CUDA_HOST_PORTABLE));
  t->host = host;
  tl_memory_note(TL_MEMORY_TRACE, 2 * (int64_t)bytes);
  return TL_OK;
}

static tl_status open_side(tl_gpu_trace *t) {
  int least, greatest;
  TRY_CUDA(t, "stream", stream_priorities(&least, &greatest));
  TRY_CUDA(t, "stream", stream_create_first(&t->side, TL_CUDA_STREAM_NON_BLOCKING, greatest));
  for (int i = 0; i < 2; i++)
    TRY_CUDA(t, "stream",
             stream_create_first(&t->clocks[i], TL_CUDA_STREAM_NON_BLOCKING, greatest));
  TRY_CUDA(t, "event", event_create(&t->ended, TL_CUDA_EVENT_PLAIN));
  for (int i = 0; i < FLUSHES; i++)
    TRY_CUDA(t, "event", event_create(&t->hashed[i], TL_CUDA_EVENT_PLAIN));
  return TL_OK;
}

tl_status tl_gpu_trace_open(tl_cuda *cuda, const tl_program *program, tl_trace *trace,
                            tl_gpu_trace **out) {
  tl_gpu_trace *t = calloc(1, sizeof *t);
  if (t == NULL) return tl_fail(TL_MEMORY, "no room for a trace");
  t->cuda = cuda, t->program = program, t->trace = trace;
  tl_trace_hashes(trace, &t->hash_count);
  t->words = t->hash_count + 1 + program->instruction_count;
  tl_status status = allocate(t);
  if (status == TL_OK) status = open_side(t);
  if (status == TL_OK) {
    *out = t;
    return TL_OK;
  }
  tl_gpu_trace_close(t);
  return status;
}

void tl_gpu_trace_close(tl_gpu_trace *t) {
  if (t == NULL) return;
  const tl_cuda_api *api = tl_cuda_calls(t->cuda);
  for (int i = 0; i < FLUSHES; i++)
    if (t->hashed[i] != NULL) api->event_destroy(t->hashed[i]);
  if (t->ended != NULL) api->event_destroy(t->ended);
  if (t->side != NULL) api->stream_destroy(t->side);
  for (int i = 0; i < 2; i++)
    if (t->clocks[i] != NULL) api->stream_destroy(t->clocks[i]);
  if (t->host != NULL) {
    api->host_free(t->host);
    tl_memory_note(TL_MEMORY_TRACE, -2 * (int64_t)t->words * (int64_t)sizeof(uint64_t));
  }
  tl_cuda_free(t->cuda, t->device);
  free(t->launches);
  free(t->followed);
  free(t->readings);
  free(t);
}

static uint64_t *begin_of(tl_gpu_trace *t) { return t->device + t->hash_count; }
static uint64_t *end_of(tl_gpu_trace *t, int32_t instruction) {
  return begin_of(t) + 1 + instruction;
}

/* A stamp waits for what it times and not for hashes, nor for stamps of the other stream: a product
** beside a message would seem to end with it. */
static tl_status queue_stamp(tl_gpu_trace *t, void *stream, uint64_t *stamp) {
  const tl_trace_stamp_args args = {.stamp = stamp};
  const tl_cuda_grid grid = {.blocks = {1}, .threads = {TL_DEVICE_WARP}};
  return tl_cuda_launch_on(t->cuda, stream, "trace_stamp", &grid, &args);
}

/* `later` goes on after what `earlier` has so far. */
static tl_status queue_after(tl_gpu_trace *t, void *later, void *earlier, void *event) {
  TRY_CUDA(t, "event", event_record(event, earlier));
  TRY_CUDA(t, "wait", stream_after(later, event, 0));
  return TL_OK;
}

tl_status tl_gpu_trace_begin(tl_gpu_trace *t) {
  void *stream = tl_cuda_stream(t->cuda);
  t->streams[0] = t->streams[1] = stream;
  t->latest[0] = t->latest[1] = -1;
  t->waited[0] = t->waited[1] = -1;
  t->waiting.count = t->waiting_blocks = t->flushes = t->reading_count = 0;
  TRY_CUDA(t, "hashes", fill(address(t->device), 0, (size_t)t->words * sizeof(uint64_t), stream));
  TL_TRY(queue_stamp(t, stream, begin_of(t)));
  TL_TRY(queue_after(t, t->side, stream, t->ended));
  for (int i = 0; i < 2; i++) TRY_CUDA(t, "wait", stream_after(t->clocks[i], t->ended, 0));
  return TL_OK;
}

/* Queues the hashes that wait. */
static tl_status flush(tl_gpu_trace *t) {
  const tl_cuda_grid grid = {.blocks = {(uint32_t)t->waiting_blocks},
                             .threads = {TL_DEVICE_THREADS}};
  TL_TRY(tl_cuda_launch_on(t->cuda, t->side, "trace_hash", &grid, &t->waiting));
  TRY_CUDA(t, "event", event_record(t->hashed[t->flushes % FLUSHES], t->side));
  t->waiting.count = t->waiting_blocks = 0;
  t->flushes++;
  return TL_OK;
}

static int writes(const tl_instruction *i, const tl_view *views, const reading *r) {
  for (int32_t k = i->out.first; k < i->out.first + i->out.count; k++) {
    const uint64_t first = address(views[k].data);
    if (first == 0) continue;
    if (first < r->end && r->first < first + (uint64_t)tl_view_bytes(&views[k])) return 1;
  }
  return 0;
}

/* The last hash launch behind `known` that reads memory which the instruction writes; -1: none. */
static int32_t last_reader(const tl_gpu_trace *t, const tl_instruction *i, const tl_view *views,
                           int32_t known) {
  int32_t last = -1;
  for (int32_t r = 0; r < t->reading_count; r++) {
    const int32_t flush = t->readings[r].flush;
    if (flush > last && flush > known && writes(i, views, &t->readings[r])) last = flush;
  }
  return last;
}

/* Whether an instruction soon after this one writes there. */
static int is_short_lived(const tl_gpu_trace *t, int32_t instruction, const tl_view *views,
                          const reading *r) {
  for (int32_t i = instruction + 1; i <= instruction + LOOK; i++)
    if (i < t->program->instruction_count && writes(&t->program->instructions[i], views, r))
      return 1;
  return 0;
}

/* Drops the readings that every stream of the section has waited for: one stream's wait says
** nothing of the other, whose instructions may write before that launch has read. */
static void forget_readings(tl_gpu_trace *t) {
  int32_t over = t->waited[0], kept = 0;
  if (t->program->lane_count > 1 && t->waited[1] < over) over = t->waited[1];
  for (int32_t r = 0; r < t->reading_count; r++)
    if (t->readings[r].flush > over) t->readings[kept++] = t->readings[r];
  t->reading_count = kept;
}

static void follow(tl_gpu_trace *t, int32_t instruction, void *stream) {
  const int at = stream != t->streams[0];
  t->streams[at] = stream;
  t->followed[instruction] = t->latest[at];
  t->latest[at] = instruction;
}

tl_status tl_gpu_trace_before(tl_gpu_trace *t, int32_t instruction, const tl_view *views,
                              void *stream) {
  int32_t *waited = &t->waited[stream != t->streams[0]];
  const int32_t last = last_reader(t, &t->program->instructions[instruction], views, *waited);
  if (last == t->flushes) TL_TRY(flush(t)); /* it still waits */
  if (last >= 0) {
    TRY_CUDA(t, "wait", stream_after(stream, t->hashed[last % FLUSHES], 0));
    *waited = last;
    forget_readings(t);
  }
  follow(t, instruction, stream);
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

/* Adds an output to those that wait. */
static const reading *add(tl_gpu_trace *t, const tl_trace_output *o, int32_t index,
                          const tl_view *view) {
  tl_trace_part *part = &t->waiting.parts[t->waiting.count++];
  reading *r = &t->readings[t->reading_count++];
  *part = part_of(&o->part, view, t->device + index);
  t->waiting_blocks += part->blocks;
  *r = (reading){.first = address(view->data),
                 .end = address(view->data) + (uint64_t)tl_view_bytes(view),
                 .flush = t->flushes};
  return r;
}

/* Whether an instruction was queued without a kernel of ours. */
static int32_t by_library(const tl_gpu_trace *t, int32_t instruction) {
  const tl_op_row *row = &tl_ops[t->program->instructions[instruction].op];
  return row->cuda != NULL && t->launches[instruction].launches == 0;
}

tl_status tl_gpu_trace_after(tl_gpu_trace *t, int32_t instruction, const tl_view *views,
                             void *stream) {
  int32_t first, count;
  const tl_trace_output *outputs = tl_trace_outputs_of(t->trace, instruction, &first, &count);
  const int32_t out = t->program->instructions[instruction].out.first;
  void *clock = t->clocks[stream != t->streams[0]];
  int hurry = 0;
  tl_gpu_trace_launch(t->cuda, t->launched, &t->launches[instruction]);
  TL_TRY(queue_after(t, clock, stream, t->ended));
  TL_TRY(queue_stamp(t, clock, end_of(t, instruction)));
  if (count > 0) TRY_CUDA(t, "wait", stream_after(t->side, t->ended, 0));
  for (int32_t k = 0; k < count; k++) {
    if (outputs[k].part.rows == 0) continue;
    const reading *r = add(t, &outputs[k], first + k, &views[out + outputs[k].position]);
    hurry = hurry || is_short_lived(t, instruction, views, r);
    if (t->waiting.count < TL_TRACE_PARTS) continue;
    TL_TRY(flush(t));
    hurry = 0;
  }
  if (hurry) TL_TRY(flush(t));
  /* A library's kernel lets the next one begin before it ends, as ours do not while they are
  ** traced: its stamp would wait for that one. */
  return by_library(t, instruction) ? queue_after(t, stream, clock, t->ended) : TL_OK;
}

tl_status tl_gpu_trace_end(tl_gpu_trace *t) {
  void *stream = tl_cuda_stream(t->cuda);
  if (t->waiting.count > 0) TL_TRY(flush(t));
  TL_TRY(queue_after(t, stream, t->side, t->ended));
  for (int i = 0; i < 2; i++) TL_TRY(queue_after(t, stream, t->clocks[i], t->ended));
  TRY_CUDA(t, "copy of hashes",
           copy_out(t->host, address(t->device), (size_t)t->words * sizeof(uint64_t), stream));
  return TL_OK;
}

/* When an instruction could begin: after the one before it on its stream, and those it waits for.
** All are in its section or in one before, which has ended. */
static uint64_t begun(const tl_gpu_trace *t, const uint64_t *stamps, int32_t instruction) {
  const tl_range waits = t->program->instructions[instruction].waits;
  const uint64_t *ends = stamps + 1;
  uint64_t latest = stamps[0];
  if (t->followed[instruction] >= 0 && ends[t->followed[instruction]] > latest)
    latest = ends[t->followed[instruction]];
  for (int32_t k = 0; k < waits.count; k++) {
    const uint64_t end = ends[t->program->waits[waits.first + k]];
    if (end > latest) latest = end;
  }
  return latest;
}

void tl_gpu_trace_take(tl_gpu_trace *t, int32_t first, int32_t count, int64_t start_ns) {
  uint64_t *stamps = t->host + t->hash_count;
  const int64_t base = (int64_t)stamps[0];
  for (int32_t i = first; i < first + count; i++) {
    tl_trace_record call = t->launches[i];
    int32_t output, outputs;
    const uint64_t start = begun(t, stamps, i);
    /* where a stamp of the other stream came late */
    if (stamps[1 + i] < start) stamps[1 + i] = start;
    call.calls = 1;
    call.start_ns = start_ns + (int64_t)start - base;
    call.end_ns = start_ns + (int64_t)stamps[1 + i] - base;
    tl_trace_note(t->trace, i, &call);
    tl_trace_outputs_of(t->trace, i, &output, &outputs);
    for (int32_t k = output; k < output + outputs; k++) tl_trace_set_hash(t->trace, k, t->host[k]);
  }
}

tl_status tl_gpu_hash_part(tl_cuda *cuda, const tl_hash_part *part, const tl_view *view,
                           void *word) {
  const tl_trace_args a = {.count = 1, .parts = {part_of(part, view, word)}};
  const tl_cuda_grid grid = {.blocks = {(uint32_t)a.parts[0].blocks},
                             .threads = {TL_DEVICE_THREADS}};
  void *stream = tl_cuda_stream(cuda);
  TL_TRY(tl_cuda_enter(cuda));
  TL_TRY(tl_cuda_check(tl_cuda_calls(cuda),
                       tl_cuda_calls(cuda)->fill(address(word), 0, sizeof(uint64_t), stream),
                       "a hash"));
  return tl_cuda_launch_on(cuda, stream, "trace_hash", &grid, &a);
}
