/* pass_keys.cuh - what attention of a few rows reads: pages, which earlier steps have filled, and
** mail, by which queries, keys and values of this step come (pass_attention.cuh).
**
** Operands of keys. A lane 4 g + t loads 16 bytes: channel g, 8 positions from 8 t on. Its word r
** with those of the other lanes is a matrix of 8 channels and 8 positions, those with
** p % 8 / 2 = r; turned it is what a step takes. So lane 4 h + t ends with head h, positions
** 8 t + 2 r, + 1.
*/
#ifndef TL_PASS_KEYS_CUH
#define TL_PASS_KEYS_CUH

#include "../attention/attention_bf16.cuh"
#include "pass_linear.cuh"

enum {
  BLOCK = TL_PASS_KEYS,
  BLOCKS = TL_PASS_WARPS * 32 / BLOCK, /* of a round */
  HEADS = TL_PASS_HEADS,
  WEIGHT_ROW = 2 * BLOCKS * BLOCK + 16,
  LEVEL_ROW = BLOCKS * BLOCK + 4, /* floats */
  SUMMER = 8,                     /* the warp of l */
  QUERY_ROW = 2 * TL_PASS_WIDTH + 16
};

/* A row and a KV head; positions first .. last are seen, those before `fresh` were written by
** earlier steps. Those of this step come by mail, or from pages after a meeting. */
struct Task {
  int row, request, kv_head, first, last, fresh;
  int tile, tiles_log; /* its first 8 channels of values, and how many times 8 */
  bool by_mail;
};

/* Shared memory of attention, in the place of x. */
struct Desk {
  unsigned char weights[HEADS * WEIGHT_ROW]; /* bf16 */
  float levels[HEADS * LEVEL_ROW];           /* weights in f32 */
  float top[TL_PASS_WARPS][HEADS];
  float sum[HEADS];
  Task task; /* what the block is at */
  __device__ __forceinline__ unsigned char *queries() { return (unsigned char *)levels; }
  __device__ __forceinline__ const unsigned char *queries() const {
    return (const unsigned char *)levels;
  }
  __device__ __forceinline__ unsigned char *values() {
    return (unsigned char *)this + TL_PASS_DESK;
  }
  __device__ __forceinline__ const unsigned char *values() const {
    return (const unsigned char *)this + TL_PASS_DESK;
  }
};
static_assert(sizeof(Desk) <= TL_PASS_DESK, "the launcher leaves room for it");

struct OwnKeys {
  uint32_t word[8][4]; /* channels 8 i + g: 8 positions */
};

TL_GPU uint32_t turn_matrix(uint32_t word) {
  uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
  return turned;
}

/* The page of a position; -1: there is none. A block keeps the table of its first task's row. */
TL_GPU int64_t page_for(const tl_cached_args &g, const Room &room, const Task &task, int position) {
  const int entry = position >> g.at.shift;
  if (room.table_row != task.row || entry >= TL_PASS_ENTRIES)
    return page_of(g.at, task.request, position);
  return room.table[entry] < g.at.pages ? room.table[entry] : -1;
}

/* All readers: the table of a task's row comes to shared memory, once. */
TL_GPU void keep_table(const tl_cached_args &g, Room &room, const Task &task) {
  if (room.table_row == task.row) return;
  all_meet();
  for (int i = thread_now(); i < TL_PASS_ENTRIES && i < g.at.pages_max; i += READERS)
    room.table[i] = g.at.table[(int64_t)task.request * g.at.pages_max + i];
  if (thread_now() == 0) room.table_row = task.row;
  all_meet();
}

/* A head's channels of values are cut into so many tasks: what a multiprocessor reads takes its
** time, and most of them have nothing to do. */
TL_GPU int tasks_of(const tl_pass_phase &p) {
  return p.attention.at.rows * p.attention.kv_heads << p.shares_log;
}

TL_GPU Task task_of(const tl_pass_phase &p, const Room &room, int index) {
  const tl_cached_args &g = p.attention;
  const int log = p.shares_log, unit = index >> log, row = unit / g.kv_heads;
  const RowPlace &place = room.row[row];
  const int oldest = place.position - g.window + 1;
  const bool by_mail = p.from_k >= 0 && p.from_v >= 0;
  int fresh = by_mail ? place.position : place.position - g.at.rows + 1;
  for (int i = 0; i < g.at.rows && by_mail; i++)
    if (room.row[i].request == place.request && room.row[i].position < fresh)
      fresh = room.row[i].position;
  const int tiles_log = 3 - log;
  return {row,
          place.request,
          unit % g.kv_heads,
          oldest > 0 ? oldest : 0,
          place.position,
          fresh,
          (index & ((1 << log) - 1)) << tiles_log,
          tiles_log,
          by_mail};
}

/* The row of this step that brings a position of the task's request; -1: none. */
TL_GPU int row_at(const tl_cached_args &g, const Room &room, const Task &task, int position) {
  for (int i = 0; i < g.at.rows; i++)
    if (room.row[i].position == position && room.row[i].request == task.request &&
        room.row[i].page >= 0)
      return i;
  return -1;
}

/* --- what comes from memory ------------------------------------------------------------------- */

TL_GPU void load_keys(const tl_cached_args &g, const Room &room, const Task &task, int key,
                      OwnKeys &keys) {
  const int lane = thread_now() % 32, position = key + lane % 4 * 8;
  const bool is_seen = position <= task.last && position + 7 >= task.first;
  const int64_t page = is_seen ? page_for(g, room, task, position) : -1;
  const uint16_t *from = (const uint16_t *)g.keys +
                         ((page * g.kv_heads + task.kv_head) * g.width << g.at.shift) +
                         (position & (g.at.page - 1));
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int channel = 8 * i + lane / 4;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (page >= 0 && channel < g.width) v = peek(from + (channel << g.at.shift));
    keys.word[i][0] = v.x, keys.word[i][1] = v.y, keys.word[i][2] = v.z, keys.word[i][3] = v.w;
  }
}

/* The piece, 8 channels, of values that the i-th thread takes of a position. */
TL_GPU int piece_of(const Task &task, int i) {
  return task.tile + (i & ((1 << task.tiles_log) - 1));
}

/* Where the desk has a piece of the position `at` of a round: those of a task stand side by side,
** mixed, so that one piece of 8 positions is in all banks. */
TL_GPU int value_place(const Task &task, int at, int piece) {
  const int log = task.tiles_log, mixed = at >> (3 - log) & ((1 << log) - 1);
  return ((at << log) + ((piece - task.tile) ^ mixed)) * 16;
}

/* Values of positions low .. high - 1 that earlier steps have written, in the place that they have
** in the round of `block`. */
TL_GPU void load_old_values(const tl_cached_args &g, const Room &room, const Task &task, int block,
                            int low, int high, Desk &desk) {
  const int thread = thread_now(), piece = piece_of(task, thread), inside = g.at.page - 1;
  const int pitch = g.kv_heads * g.value_width;
  const uint16_t *const values =
      (const uint16_t *)g.values + task.kv_head * g.value_width + piece * 8;
  const bool has = piece * 8 < g.value_width;
#pragma unroll 2
  for (int position = low + (thread >> task.tiles_log); position < high;
       position += READERS >> task.tiles_log) {
    const int at = position - block;
    const int64_t page = position >= task.first ? page_for(g, room, task, position) : -1;
    const int64_t row = (page << g.at.shift) + (position & inside);
    const bool there = has && page >= 0;
    copy_async(shared_address(desk.values()) + value_place(task, at, piece),
               there ? values + row * pitch : (const uint16_t *)g.values, there ? 16 : 0);
  }
}

/* Values of positions low .. high - 1, in the place that they have in the round of `block`. */
TL_GPU void load_value(const tl_pass_phase &p, const Room &room, const Task &task, int block,
                       int position, int piece, Desk &desk) {
  const tl_cached_args &g = p.attention;
  const int at = position - block;
  const bool is_seen = position >= task.first && position <= task.last;
  const int64_t page = is_seen ? page_for(g, room, task, position) : -1;
  const int64_t row =
      ((page << g.at.shift) + (position & (g.at.page - 1))) * g.kv_heads + task.kv_head;
  const bool there = page >= 0 && piece * 8 < g.value_width;
  const int fresh =
      there && task.by_mail && position >= task.fresh ? row_at(g, room, task, position) : -1;
  unsigned char *to = desk.values() + value_place(task, at, piece);
  const uint16_t *from = (const uint16_t *)g.values + row * g.value_width + piece * 8;
  if (fresh < 0) {
    copy_async(shared_address(to), there ? from : g.values, there ? 16 : 0);
    return;
  }
  from = source_in(room.mail, p.from_v, nullptr).at +
         (fresh * g.kv_heads + task.kv_head) * g.value_width + piece * 8;
  uint4 v = peek(from);
  while (is_absent(v)) v = peek(from);
  *(uint4 *)to = v;
}
TL_GPU void load_values(const tl_pass_phase &p, const Room &room, const Task &task, int block,
                        int low, int high, Desk &desk) {
#pragma unroll 1
  for (int i = thread_now(); i < (high - low) << task.tiles_log; i += READERS)
    load_value(p, room, task, block, low + (i >> task.tiles_log), piece_of(task, i), desk);
}

/* Blocks of the round that begins at `block`: up to the end of its part and of the row. */
TL_GPU int blocks_of(const tl_cached_args &g, const Task &task, int block) {
  const int part = (g.split - block % g.split) / BLOCK, row = (task.last - block) / BLOCK + 1;
  const int least = part < row ? part : row;
  return least < BLOCKS ? least : BLOCKS;
}

/* The values of a round that steps take, whole steps: low .. high - 1. */
struct Span {
  int low, high;
};
TL_GPU Span span_of(const Task &task, int block, int blocks) {
  const int first = task.first / 16 * 16, end = task.last / 16 * 16 + 16;
  const int high = block + blocks * BLOCK;
  return {first > block ? first : block, end < high ? end : high};
}

/* Before blocks meet: what earlier steps have written. */
TL_GPU void load_early(const tl_pass_phase &p, Room &room, const Task &task, Desk &desk,
                       OwnKeys &keys) {
  const tl_cached_args &g = p.attention;
  const int block = task.first / BLOCK * BLOCK, key = block + thread_now() / 32 * 32;
  const Span span = span_of(task, block, blocks_of(g, task, block));
  keep_table(g, room, task);
  if (task.by_mail || key + 31 < task.fresh) load_keys(g, room, task, key, keys);
  load_old_values(g, room, task, block, span.low, span.high < task.fresh ? span.high : task.fresh,
                  desk);
}
/* What load_early left out, but for keys that come by mail. */
TL_GPU void load_late_keys(const tl_cached_args &g, const Room &room, const Task &task,
                           OwnKeys &keys) {
  const int block = task.first / BLOCK * BLOCK, key = block + thread_now() / 32 * 32;
  if (!task.by_mail && key + 31 >= task.fresh) load_keys(g, room, task, key, keys);
}
/* A piece of values of this step on its way from the mail to its place. */
struct FreshValues {
  uint4 v;
  int from, to; /* element of the mail's values, byte of the desk's; to -1: there is none */
};
/* Where this thread's piece comes from and goes to: known before it is there. */
TL_GPU FreshValues plan_values(const tl_pass_phase &p, const Room &room, const Task &task) {
  const tl_cached_args &g = p.attention;
  const int block = task.first / BLOCK * BLOCK, thread = thread_now();
  const int piece = piece_of(task, thread);
  const Span span = span_of(task, block, blocks_of(g, task, block));
  const int low = span.low > task.fresh ? span.low : task.fresh;
  const int position = low + (thread >> task.tiles_log);
  FreshValues f = {make_uint4(0, 0, 0, 0), 0, -1};
  if (!task.by_mail || position >= span.high) return f;
  const bool seen = position >= task.first && position <= task.last && piece * 8 < g.value_width;
  const int row = seen ? row_at(g, room, task, position) : -1;
  if (row < 0) return f;
  f.from = (row * g.kv_heads + task.kv_head) * g.value_width + piece * 8;
  f.to = value_place(task, position - block, piece);
  return f;
}
TL_GPU void ask_values(const tl_pass_phase &p, const Room &room, const Task &task, Desk &desk,
                       FreshValues &f) {
  const tl_cached_args &g = p.attention;
  if (f.to >= 0) f.v = peek(source_in(room.mail, p.from_v, nullptr).at + f.from);
  const int block = task.first / BLOCK * BLOCK, thread = thread_now();
  const int most = READERS >> task.tiles_log;
  const Span span = span_of(task, block, blocks_of(g, task, block));
  const int low = span.low > task.fresh ? span.low : task.fresh;
  const int position = low + (thread >> task.tiles_log);
  if (!task.by_mail) return load_values(p, room, task, block, low, span.high, desk);
  if (low + most < span.high) load_values(p, room, task, block, low + most, span.high, desk);
  if (f.to < 0 && position < span.high)
    load_value(p, room, task, block, position, piece_of(task, thread), desk);
}
TL_GPU void put_values(const tl_pass_phase &p, const Room &room, FreshValues &f, Desk &desk) {
  if (f.to < 0) return;
  while (is_absent(f.v)) f.v = peek(source_in(room.mail, p.from_v, nullptr).at + f.from);
  *(uint4 *)(desk.values() + f.to) = f.v;
}

struct Queries {
  uint32_t word[4][2];
};
/* Keys of this step: of row lane / 4, if that is the task's request. */
struct FreshKeys {
  uint32_t word[8];
};

TL_GPU bool is_of(const RowPlace &row, const Task &task) {
  return row.request == task.request && row.page >= 0 && row.position <= task.last;
}

/* Queries and keys come at the same time. Four warps wait for them, a thread for a piece, so that
** little is asked for; all have them from shared memory, where levels are later. */
TL_GPU void bring_queries(const tl_pass_phase &p, const Room &room, const Task &task, int done,
                          Desk &desk) {
  const tl_cached_args &g = p.attention;
  const int thread = thread_now(), row = thread / 8 % 8, piece = thread % 8;
  const bool is_key = thread >= 64;
  if (thread >= 128) return;
  const Source s =
      is_key ? source_in(room.mail, p.from_k, nullptr) : source_in(room.mail, p.from, g.q);
  const int unit = is_key ? row * g.kv_heads + task.kv_head
                          : task.row * g.heads + task.kv_head * g.group + done + row;
  const bool there =
      piece * 8 < g.width && (is_key ? task.by_mail && row < g.at.rows && is_of(room.row[row], task)
                                     : row < g.group - done);
  const uint16_t *from = s.at + unit * g.width + piece * 8;
  uint4 v = make_uint4(0, 0, 0, 0);
  if (there) v = peek(from);
  while (s.comes && is_absent(v)) v = peek(from);
  *(uint4 *)(desk.queries() + is_key * 8 * QUERY_ROW + row * QUERY_ROW + piece * 16) = v;
}
/* After all have met. */
TL_GPU void load_queries(const Desk &desk, Queries &q, FreshKeys &k) {
  const int lane = thread_now() % 32;
  const uint32_t from = shared_address(desk.queries()) + lane % 8 * QUERY_ROW + lane / 8 * 16;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t w[4];
    load_matrices(from + i * 64, w);
    q.word[2 * i][0] = w[0], q.word[2 * i][1] = w[1];
    q.word[2 * i + 1][0] = w[2], q.word[2 * i + 1][1] = w[3];
    load_matrices(from + 8 * QUERY_ROW + i * 64, k.word + 4 * i);
  }
}

#endif
