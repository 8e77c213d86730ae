/* pass_attention.cuh - attention of a few rows over pages, a row and KV head a block of threads.
**
** What cache.h says, in its order: O and l are chains over the keys, so what is in order are short
** steps of few instructions, and all else stands side by side. Three blocks of 128 keys are a
** round.
**
**   scores    warp w: 32 keys, straight from pages into registers     12 warps side by side
**   maxima    of each warp; every thread then knows those of blocks up to its own
**   weights   where the scores are; f32 for l, bf16 for O             12 warps
**   O         warp w < 8: channels 8 w .. 8 w + 7, key after key      8 warps, or 2 of 4 blocks
**   l         warp 8: lane 4 h + r has l_r of head h                  beside them
*/
#ifndef TL_PASS_ATTENTION_CUH
#define TL_PASS_ATTENTION_CUH

#include "pass_keys.cuh"

/* --- scores and weights ----------------------------------------------------------------------- */

typedef float Scores[4][4];

/* What was loaded becomes operands, before queries are there. */
TL_GPU void turn_keys(OwnKeys &keys) {
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int r = 0; r < 4; r++) keys.word[i][r] = turn_matrix(keys.word[i][r]);
}

/* `keys` are turned. */
TL_GPU void measure(const Queries &q, const OwnKeys &keys, Scores &s) {
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[r][e] = 0.0f;
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const uint32_t a[4] = {q.word[c][0], q.word[c][0], q.word[c][1], q.word[c][1]};
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const uint32_t b[2] = {keys.word[2 * c][r], keys.word[2 * c + 1][r]};
      step(s[r], a, b);
    }
  }
}

TL_GPU bool is_near(const RowPlace &row, const Task &task, int key) {
  return is_of(row, task) && row.position >= key && row.position < key + 32;
}

/* Keys that this step writes come by mail, row g of the step in column g: no page has to be waited
** for. Their scores take the place of what lay in the pages. */
TL_GPU void measure_fresh(const Task &task, int key, const Queries &q, const FreshKeys &keys,
                          float (&fresh)[2]) {
  if (!task.by_mail || key + 31 < task.fresh || key > task.last) return;
  float f[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const uint32_t a[4] = {q.word[c][0], q.word[c][0], q.word[c][1], q.word[c][1]};
    step(f, a, keys.word + 2 * c);
  }
  fresh[0] = f[0], fresh[1] = f[1];
}
TL_GPU void take_fresh(const tl_cached_args &g, const Room &room, const Task &task, int key,
                       const float (&fresh)[2], Scores &s) {
  const int lane = thread_now() % 32;
  if (!task.by_mail || key + 31 < task.fresh || key > task.last) return;
#pragma unroll 1
  for (int r = 0; r < g.at.rows; r++) {
    if (!is_near(room.row[r], task, key)) continue;
    const int at = room.row[r].position - key;
    const float score = __shfl_sync(~0u, r % 2 ? fresh[1] : fresh[0], lane / 4 * 4 + r / 2);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (lane % 4 * 8 + i == at) s[i / 2][i % 2] = score;
  }
}

/* What all threads know of head lane / 4: the level of the blocks so far, and how O and l fade when
** each block of the round begins. */
struct Level {
  float m, t, fades[BLOCKS], own;
};

TL_GPU bool is_seen(const Task &task, int position) {
  return position >= task.first && position <= task.last;
}

TL_GPU void put_top(const Task &task, int key, const Scores &s, Desk &desk) {
  const int lane = thread_now() % 32, warp = thread_now() / 32;
  float top = -TL_INFINITY;
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (is_seen(task, key + lane % 4 * 8 + 2 * r + e)) top = fmaxf(top, s[r][e]);
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  if (lane % 4 == 0) desk.top[warp][lane / 4] = top;
}

TL_GPU void take_tops(const tl_cached_args &g, int blocks, const Desk &desk, Level &level) {
  const int head = thread_now() % 32 / 4;
#pragma unroll
  for (int j = 0; j < BLOCKS; j++) {
    if (j >= blocks) continue;
#pragma unroll
    for (int w = 0; w < BLOCK / 32; w++)
      level.m = fmaxf(level.m, desk.top[j * (BLOCK / 32) + w][head]);
    const float u = level.m * g.factor;
    level.fades[j] = fading(level.t, u);
    if (thread_now() / 128 == j) level.own = u;
    level.t = u;
  }
}

TL_GPU void soften(const tl_cached_args &g, const Task &task, int key, const Scores &s, float u,
                   Desk &desk) {
  const int lane = thread_now() % 32, warp = thread_now() / 32, head = lane / 4;
  const int column = warp * 32 + lane % 4 * 8;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    float p[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
      p[e] = is_seen(task, key + lane % 4 * 8 + 2 * r + e) ? tl_exp2(fmaf(s[r][e], g.factor, -u))
                                                           : 0.0f;
    *(float2 *)(desk.levels + head * LEVEL_ROW + column + 2 * r) = make_float2(p[0], p[1]);
    *(uint32_t *)(desk.weights + head * WEIGHT_ROW + (column + 2 * r) * 2) = bf16_pair(p[0], p[1]);
  }
}

/* --- O and l ---------------------------------------------------------------------------------- */

/* A whole block of keys: its operands come side by side. */
TL_GPU void add_block(uint32_t weights, uint32_t values, int begin, int tiles_log, float *o) {
  uint32_t w[BLOCK / 32][4], v[BLOCK / 32][4];
#pragma unroll
  for (int i = 0; i < BLOCK / 32; i++) {
    load_matrices(weights + i * 64, w[i]);
    load_matrices_across(values + ((begin + i * 32) * 16 << tiles_log), v[i]);
  }
#pragma unroll
  for (int i = 0; i < BLOCK / 32; i++) {
    const uint32_t low[4] = {w[i][0], w[i][0], w[i][1], w[i][1]};
    const uint32_t high[4] = {w[i][2], w[i][2], w[i][3], w[i][3]};
    step(o, low, v[i]);
    step(o, high, v[i] + 2);
  }
}

/* Warp w < 8: o[0], o[1] of head lane / 4, channels 8 w + 2 (lane % 4), + 1. */
TL_GPU void add_values(const Task &task, int block, int blocks, const Level &level,
                       const Desk &desk, float (&o)[4]) {
  const int lane = thread_now() % 32, warp = thread_now() / 32;
  const uint32_t weights = shared_address(desk.weights) + lane % 8 * WEIGHT_ROW + lane / 8 * 16;
  const uint32_t values = shared_address(desk.values()) + value_place(task, lane, task.tile + warp);
  const Span span = span_of(task, block, blocks);
#pragma unroll
  for (int j = 0; j < BLOCKS; j++) {
    if (j >= blocks) continue;
    const int begin = span.low - block > j * BLOCK ? span.low - block : j * BLOCK;
    const int end = span.high - block < (j + 1) * BLOCK ? span.high - block : (j + 1) * BLOCK;
#pragma unroll
    for (int e = 0; e < 4; e++) o[e] = o[e] * level.fades[j];
    if (end - begin == BLOCK) {
      add_block(weights + begin * 2, values, begin, task.tiles_log, o);
      continue;
    }
#pragma unroll 4
    for (int k = begin; k < end; k += 32) {
      uint32_t w[4], v[4];
      load_matrices(weights + k * 2, w);
      load_matrices_across(values + (k * 16 << task.tiles_log), v);
      const uint32_t low[4] = {w[0], w[0], w[1], w[1]}, high[4] = {w[2], w[2], w[3], w[3]};
      step(o, low, v);
      if (k + 16 < end) step(o, high, v + 2);
    }
  }
}

TL_GPU void add_levels(const Task &task, int block, int blocks, const Level &level,
                       const Desk &desk, float &l) {
  const int lane = thread_now() % 32;
  const float *from = desk.levels + lane / 4 * LEVEL_ROW + lane % 4 * 2;
  const Span span = span_of(task, block, blocks);
#pragma unroll
  for (int j = 0; j < BLOCKS; j++) {
    if (j >= blocks) continue;
    const int begin = span.low - block > j * BLOCK ? span.low - block : j * BLOCK;
    const int end = span.high - block < (j + 1) * BLOCK ? span.high - block : (j + 1) * BLOCK;
    l = l * level.fades[j];
#pragma unroll 4
    for (int k = begin; k < end; k += 8) {
      const float2 p = *(const float2 *)(from + k);
      l = l + p.x;
      l = l + p.y;
    }
  }
}

/* Parts before, of the thread's head and channels. */
struct Parts {
  float o[2], t, l;
  bool begun;
};

/* All readers. A part has ended: its l is known to warp 8. */
TL_GPU void end_part(float l, Level &level, Desk &desk, float (&o)[4], Parts &parts) {
  const int lane = thread_now() % 32, warp = thread_now() / 32;
  l = sum_of_four(l);
  if (warp == SUMMER && lane % 4 == 0) desk.sum[lane / 4] = l;
  all_meet();
  const Merge m = merge(parts.begun, true, parts.t, parts.l, level.t, desk.sum[lane / 4]);
#pragma unroll
  for (int e = 0; e < 2; e++) parts.o[e] = parts.begun ? merged(m, parts.o[e], o[e]) : o[e];
#pragma unroll
  for (int e = 0; e < 4; e++) o[e] = 0.0f;
  parts.begun = true;
  level.m = level.t = -TL_INFINITY;
}

/* Two neighbours of the result, for the phase that follows. */
TL_GPU void hand_on(const tl_pass_phase &p, const Room &room, int64_t at, uint32_t pair) {
  if (p.to >= 0) post(room.mail + ((int64_t)p.to * 16 + at * 2), pair);
}

TL_GPU void put_heads(const tl_pass_phase &p, const Task &task, int done, const Parts &parts,
                      const Room &room) {
  const tl_cached_args &g = p.attention;
  const int lane = thread_now() % 32, warp = thread_now() / 32, head = lane / 4;
  const int channel = 8 * (task.tile + warp) + lane % 4 * 2;
  if (head >= g.group - done || channel >= g.value_width) return;
  const int64_t at =
      ((int64_t)task.row * g.heads + task.kv_head * g.group + done + head) * g.value_width +
      channel;
  const uint32_t pair = bf16_pair(parts.o[0] / parts.l, parts.o[1] / parts.l);
  hand_on(p, room, at, pair);
  *(uint32_t *)((uint16_t *)g.o + at) = pair;
}

/* Heads done .. done + 7 of a task. What the first round takes is on its way. */
TL_GPU void attend(const tl_pass_phase &p, const Task &task, int done, const Room &room,
                   OwnKeys &keys, Desk &desk) {
  const tl_cached_args &g = p.attention;
  const int warp = thread_now() / 32;
  Queries q;
  FreshKeys fresh_keys;
  FreshValues fresh_values = plan_values(p, room, task);
  turn_keys(keys);
  bring_queries(p, room, task, done, desk);
  all_meet();
  load_queries(desk, q, fresh_keys);
  ask_values(p, room, task, desk, fresh_values);
  Level level = {-TL_INFINITY, -TL_INFINITY};
  Parts parts = {};
  float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, l = 0.0f;
#pragma unroll 1
  for (int block = task.first / BLOCK * BLOCK; block <= task.last;) {
    const int blocks = blocks_of(g, task, block), next = block + blocks * BLOCK;
    const int key = block + warp * 32;
    Scores s;
    float fresh[2] = {0.0f, 0.0f};
    measure_fresh(task, key, q, fresh_keys, fresh);
    measure(q, keys, s);
    take_fresh(g, room, task, key, fresh, s);
    put_top(task, key, s, desk);
    all_meet();
    take_tops(g, blocks, desk, level);

    if (warp < blocks * (BLOCK / 32)) soften(g, task, key, s, level.own, desk);
    if (next <= task.last) load_keys(g, room, task, next + warp * 32, keys);
    put_values(p, room, fresh_values, desk);
    fresh_values.to = -1;
    copy_commit();
    copy_wait<0>();
    all_meet();
    if (warp < 1 << task.tiles_log) add_values(task, block, blocks, level, desk, o);
    if (warp == SUMMER) add_levels(task, block, blocks, level, desk, l);
    if (next > task.last || next % g.split == 0) {
      end_part(l, level, desk, o, parts);
      l = 0.0f;
    } else {
      all_meet();
    }
    block = next;
    if (block > task.last) break;
    const Span span = span_of(task, block, blocks_of(g, task, block));
    load_values(p, room, task, block, span.low, span.high, desk);
    turn_keys(keys);
  }
  if (warp < 1 << task.tiles_log) put_heads(p, task, done, parts, room);
}

/* A row that is none is 0, one that names what there is not is NaN. */
TL_GPU void fill_heads(const tl_pass_phase &p, const Task &task, uint32_t pair, const Room &room) {
  const tl_cached_args &g = p.attention;
  const int count = g.group * g.value_width;
  const int64_t first = ((int64_t)task.row * g.kv_heads + task.kv_head) * count;
  for (int i = thread_now() * 2; i < count; i += 2 * READERS) {
    hand_on(p, room, first + i, pair);
    *(uint32_t *)((uint16_t *)g.o + first + i) = pair;
  }
}

TL_GPU bool exists(const tl_cached_args &g, const Task &task) {
  return task.request >= 0 && is_place(g.at, task.request, task.last);
}

/* All readers: the block turns to a task. */
TL_GPU void take_task(const tl_pass_phase &p, const Room &room, int index, Desk &desk) {
  all_meet();
  if (thread_now() == 0) desk.task = task_of(p, room, index);
  all_meet();
}

/* Before blocks meet: the first task is begun, if there is one. */
TL_GPU void begin_attention(const tl_pass_phase &p, Room &room, Desk &desk, OwnKeys &keys) {
  const tl_cached_args &g = p.attention;
  if (block_now() >= tasks_of(p)) return;
  take_task(p, room, block_now(), desk);
  if (exists(g, desk.task)) load_early(p, room, desk.task, desk, keys);
}

/* The block's tasks; `keys`: of the first, as begin_attention left them. */
TL_GPU void attend_all(const tl_pass_phase &p, Room &room, OwnKeys &keys, Desk &desk) {
  const tl_cached_args &g = p.attention;
#pragma unroll 1
  for (int i = block_now(); i < tasks_of(p); i += gridDim.x) {
    if (i != block_now()) take_task(p, room, i, desk);
    if (!exists(g, desk.task)) {
      fill_heads(p, desk.task, desk.task.request < 0 ? 0 : 0x7fff7fffu, room);
      continue;
    }
#pragma unroll 1
    for (int done = 0; done < g.group; done += HEADS) {
      if (i != block_now() || done > 0) {
        all_meet();
        load_early(p, room, desk.task, desk, keys);
      }
      load_late_keys(g, room, desk.task, keys);
      attend(p, desk.task, done, room, keys, desk);
    }
  }
}

#endif
