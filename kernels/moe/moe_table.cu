/* moe_table.cu - the router by hash on a GPU: a warp for each row of logits (moe_route.cuh), whose
** experts stand in the table's row of the token's id. Slot i is held by lane i % 32.
*/
#include "moe_route.cuh"

enum { KEPT = 2 /* slots of a lane */ };

/* Whether the lane's slot has another expert than every slot before. */
TL_GPU bool differs(int slots, int slot, const int *expert, int own) {
  bool alone = true;
  for (int other = 0; other < slots; other++) {
    const int e = __shfl_sync(ALL, other < WARP ? expert[0] : expert[1], other % WARP);
    alone = alone && (other >= slot || e != own);
  }
  return alone;
}

/* The experts of a row: those of its id, padding's of id 0. False, and experts that exist, where
** the table has none. */
TL_GPU bool look_up(const tl_route_table_args &k, int64_t row, int *expert) {
  const int slots = k.route.slots, lane = lane_of();
  const int64_t sample = row / k.tokens, token = k.token_first + row - sample * k.tokens;
  const int32_t given = k.ids[sample * k.length + token];
  const int64_t id = given < 0 ? 0 : given;
  bool good = id < k.vocab;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int slot = lane + i * WARP;
    const float entry = id < k.vocab && slot < slots ? k.table[id * slots + slot] : 0.0f;
    const bool within = entry >= 0.0f && entry < (float)k.route.experts;
    expert[i] = within ? (int)entry : 0;
    good = good && within && (float)expert[i] == entry;
  }
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int slot = lane + i * WARP;
    const bool alone = differs(slots, slot, expert, expert[i]);
    good = good && (alone || slot >= slots);
  }
  return __all_sync(ALL, good);
}

/* memory: scores of the row, (experts). */
template <int each>
TL_GPU void table_row(const tl_route_table_args &k, int64_t row, float *memory) {
  const tl_route_args &r = k.route;
  const int lane = lane_of(), first = lane * each;
  float z[each], s[each];
  int expert[KEPT];
  load_row<each>(r.z + row * r.experts, r.experts, r.vectors, z);
  const int fault = fault_of<each>(r, z);
  tell_fault(r, row, look_up(k, row, expert) || fault != FAULT_NONE ? fault : FAULT_TABLE);
  scores_of<each>(r.kind, r.experts, z, s);
#pragma unroll
  for (int i = 0; i < each; i++)
    if (first + i < r.experts) memory[first + i] = s[i];
  __syncwarp();
  float total = 0.0f;
  for (int slot = 0; slot < r.slots; slot++)
    total = total + memory[__shfl_sync(ALL, slot < WARP ? expert[0] : expert[1], slot % WARP)];
  if (r.kind != SOFTMAX) total = total + 1e-20f;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int slot = lane + i * WARP;
    if (slot >= r.slots) continue;
    const float score = memory[expert[i]];
    r.weight[row * r.slots + slot] = (r.normalize ? score / total : score) * r.scale;
    r.expert[row * r.slots + slot] = expert[i];
  }
  __syncwarp(); /* the warp's next row may write its memory */
}

#define KERNEL(each)                                                                      \
  TL_KERNEL route_table_rows_##each(const __grid_constant__ tl_route_table_args k) {      \
    each_row<each>(k.route, k.route.experts,                                              \
                   [&](int64_t row, float *memory) { table_row<each>(k, row, memory); }); \
  }
KERNEL(1)
KERNEL(2)
KERNEL(4)
KERNEL(8)
KERNEL(16)
KERNEL(32)
