// cache_hopper.cu - attention_cached of bf16 for steps in which many requests decode: a block of
// six warps has a row and a KV head, and the copy engine brings what it reads.
//
//   boxes   64 positions of one page and head, 8 KiB: keys [channel][position], values [position]
//           [channel]. A page that is not there is read past the end of the pool: as zeros.
//   group   two blocks of 128 keys, or what is left: its boxes of keys, then those of values
//   ring    boxes in the order in which they are used, from unit to unit
//
//   warp 5      asks for boxes as slots become free
//   warps 0 .. 3, of a group
//     scores    keys 16 w .. of each box, 8 heads, in registers; the largest of a block meet
//     weights   levels of its blocks one after the other, then all weights, to shared memory
//     values    channels 16 w .., all keys, one after the other
//   warp 4      how sums fade from block to block; the sums of weights, in the order of keys
//
// Scores of a group do not wait for each other, so a group has two meetings of warps, and values
// are on their way meanwhile.
//
// A block takes rows and KV heads (units) gridDim.x apart. Boxes of the first unit that no row of
// this step writes hold what earlier steps wrote; they are asked for before earlier kernels have
// ended. Which those are follows from all rows' places.
//
// The sums are those of cache_one.cuh and cache_many.cuh; here a request is one part (no split), a
// block has 128 keys, and there is no window, which the launcher looks at.
#include "cache_hopper_ring.cuh"

// Piece `piece` of 16 bytes of row `row` of a box.
GPU uint32_t piece_at(uint32_t box, int row, int piece) {
  return box + row * 128 + ((piece ^ (row & 7)) << 4);
}

// What a thread loads of q: 4 channels of a head; of heads that there are not, zeros.
GPU uint2 load_query(const tl_cached_args &g, int unit) {
  const int64_t row = unit / g.kv_heads;
  const int head = threadIdx.x / 16;
  const int64_t at = row * g.heads + unit % g.kv_heads * g.group + head;
  if (head >= g.group) return make_uint2(0, 0);
  return *(const uint2 *)((const uint16_t *)g.q + at * BOX + threadIdx.x % 16 * 4);
}

GPU void store_query(uint2 q, Shared &shared) {
  const int head = threadIdx.x / 16, piece = threadIdx.x % 16;
  *(uint2 *)(shared.query + head * 128 + ((piece / 2 ^ head) << 4) + piece % 2 * 8) = q;
  fence_async();
  named_sync<32 * READERS>(OWN);
}

// sum (64 rows x 8) = (keep ? sum : 0) + a * b, one step of 16 k, as product of hopper.cuh.
GPU void product_8(float (&sum)[4], uint64_t a, uint64_t b, int keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 1, "
      "0;\n}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "l"(a), "l"(b), "r"(keep));
}

// Scores of the keys of some boxes: lane 4 g + t of warp w has keys 16 w + g, + 8 of each, heads
// 2 t, + 1.
template <int boxes>
GPU void measure(const Slots &slots, uint32_t query, float (*s)[4]) {
  const uint64_t q = factor_at<ALONG>(query);
  uint64_t a[boxes];
#pragma unroll
  for (int i = 0; i < boxes; i++) a[i] = factor_at<ACROSS>(box_at(slots, i));
  products_begin();
#pragma unroll
  for (int c = 0; c < BOX / 16; c++)
#pragma unroll
    for (int i = 0; i < boxes; i++)
      product_8(s[i], a[i] + c * factor_step<ACROSS>, q + c * factor_step<ALONG>, c > 0);
  products_commit();
  products_wait<0>();
#pragma unroll
  for (int i = 0; i < boxes; i++) hold<4>(s[i]);
}

// The keys of a group that a row sees. `limit`: counted from the lane's first one.
struct Group {
  int boxes, seen;
  int limit;
};
template <bool whole>
GPU bool is_seen(const Group &group, int box, int e) {
  return whole || box * BOX + e / 2 * 8 < group.limit;
}
// Whether all keys of a block are seen.
GPU bool is_whole(const Group &group, int block) { return (block + 1) * KEYS <= group.seen; }

// The largest score of the warp's keys of block `b`: of head 2 t in lanes below 16, 2 t + 1 above.
template <bool whole>
GPU float largest(const Group &group, int b, const float (*s)[4]) {
  float m[2] = {-TL_INFINITY, -TL_INFINITY};
#pragma unroll
  for (int e = 0; e < 8; e++)
    if (is_seen<whole>(group, 2 * b + e / 4, e % 4)) m[e % 2] = fmaxf(m[e % 2], s[e / 4][e % 4]);
  const bool second = threadIdx.x & 16;
  return fmaxf(second ? m[1] : m[0], __shfl_xor_sync(~0u, second ? m[0] : m[1], 16));
}

// The same of a block that may be seen in part.
GPU float largest_of(const Group &group, int b, const float (*s)[4]) {
  if (2 * b >= group.boxes) return -TL_INFINITY;
  return is_whole(group, b) ? largest<true>(group, b, s) : largest<false>(group, b, s);
}

// Scores of a group, and the largest ones of the warp's keys of each block. Where there is no last
// box of a block, its scores are those of the one before, and not used.
static_assert(BLOCKS == 2, "one or two blocks are measured side by side");
GPU void score(const Ring &r, Place &p, const Group &group, float (&s)[BOXES][4], Shared &shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t query = uniform(shared_address(shared.query));
  float m[BLOCKS];
  const Slots slots = slots_at(r, p, group.boxes);
  wait_for(r, slots);
  if (group.boxes > 2)
    measure<4>(slots, query, s);
  else
    measure<2>(slots, query, s);
  give_back(r, slots, group.boxes);
  move_on(r, p, group.boxes);
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) m[b] = largest_of(group, b, s + 2 * b);
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) m[b] = fmaxf(m[b], __shfl_xor_sync(~0u, m[b], 8));
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) m[b] = fmaxf(m[b], __shfl_xor_sync(~0u, m[b], 4));
  if ((lane & 12) == 0)
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) shared.most[b][warp][lane % 4 * 2 + lane / 16] = m[b];
}

// Where the weights of key `key` of 8 stand: so even keys lie in 32 banks, and odd ones.
GPU int place_of_key(int key) { return key ^ key >> 2; }

// Scores of a block's keys that are seen become weights, the others +0.
template <bool whole>
GPU void soften(const tl_cached_args &g, const Group &group, int b, const float (*s)[4], float2 t,
                Shared &shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {  // keys + 8 i % 2 of box i / 2
    const float *from = s[i / 2] + i % 2 * 2;
    const float x = tl_exp2(fmaf(from[0], g.factor, -t.x));
    const float y = tl_exp2(fmaf(from[1], g.factor, -t.y));
    const bool seen = is_seen<whole>(group, 2 * b + i / 2, i % 2 * 2);
    const float2 w = {seen ? x : 0.0f, seen ? y : 0.0f};
    const int key = (2 * b + i / 2) * BOX + warp * 16 + i % 2 * 8 + place_of_key(lane / 4);
    *(float2 *)&shared.weight[key][lane % 4 * 2] = w;
    pair[i] = bf16_pair(w.x, w.y);
  }
  const int head = lane % 8, piece = 2 * warp + lane / 8 % 2;
  const uint32_t to = shared_address(shared.rounded[2 * b + lane / 16]) + head * 128;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   to + ((piece ^ head) << 4)),
               "r"(pair[0]), "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
               : "memory");
}

// All scores of a group become weights, each at the level of its block.
GPU void soften_all(const tl_cached_args &g, const Group &group, const float (&s)[BOXES][4],
                    float2 &m, Shared &shared) {
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
    if (2 * b >= group.boxes) break;
#pragma unroll
    for (int w = 0; w < READERS; w++) {
      const float2 most = *(const float2 *)&shared.most[b][w][threadIdx.x % 4 * 2];
      m.x = fmaxf(m.x, most.x), m.y = fmaxf(m.y, most.y);
    }
    const float2 t = {m.x * g.factor, m.y * g.factor};
    if (is_whole(group, b))
      soften<true>(g, group, b, s + 2 * b, t, shared);
    else
      soften<false>(g, group, b, s + 2 * b, t, shared);
  }
  fence_async();
}

// Values of positions from `seen` on, up to a whole step of 16, become zeros: what lies in a page
// by chance is not added up.
GPU void clear_values(uint32_t box, int seen) {
  const uint32_t zeros[4] = {0, 0, 0, 0};
  const int row = seen + threadIdx.x / 8;
  if (row < (seen + 15) / 16 * 16) store_shared(piece_at(box, row, threadIdx.x % 8), zeros);
  fence_async();
  named_sync<32 * READERS>(OWN);
}

// o (64 channels, 8 heads) resumes with steps of a box of values.
template <int steps>
GPU void add_steps(uint32_t box, uint32_t weights, float (&o)[4]) {
  const uint64_t a = factor_at<ACROSS>(box), b = factor_at<ALONG>(weights);
#pragma unroll
  for (int j = 0; j < steps; j++)
    product_8(o, a + j * factor_step<ACROSS>, b + j * factor_step<ALONG>, 1);
}

// The values of a block of keys: all steps of the first `boxes` boxes, or those of which something
// is seen.
template <int steps>
GPU void add_block(uint32_t one, uint32_t two, uint32_t weights, float (&o)[4]) {
  products_begin();
  add_steps < steps<4 ? steps : 4>(one, weights, o);
  if constexpr (steps > 4) add_steps<steps - 4>(two, weights + 1024, o);
  products_commit();
  products_wait<0>();
  hold<4>(o);
}

// The same for any number of steps.
GPU void add_part(uint32_t one, uint32_t two, uint32_t weights, int steps, float (&o)[4]) {
  switch (steps) {
    case 1: return add_block<1>(one, two, weights, o);
    case 2: return add_block<2>(one, two, weights, o);
    case 3: return add_block<3>(one, two, weights, o);
    case 4: return add_block<4>(one, two, weights, o);
    case 5: return add_block<5>(one, two, weights, o);
    case 6: return add_block<6>(one, two, weights, o);
    case 7: return add_block<7>(one, two, weights, o);
    default: return add_block<8>(one, two, weights, o);
  }
}

// o (lane 4 g + t of warp w: channels 16 w + g, + 8, heads 2 t, + 1) resumes with a group's values.
GPU void add_values(const Ring &r, Place &p, const Group &group, const Shared &shared,
                    float (&o)[4]) {
  const uint32_t weights = uniform(shared_address(shared.rounded[0]));
#pragma unroll 1
  for (int b = 0; 2 * b < group.boxes; b++) {
    const int count = least(group.boxes - 2 * b, 2), seen = group.seen - b * KEYS;
    const Slots slots = slots_at(r, p, count);
    const float2 a = *(const float2 *)&shared.fade[b][threadIdx.x % 4 * 2];
    const uint32_t one = box_at(slots, 0), two = box_at(slots, 1), own = weights + 2 * b * 1024;
    wait_for(r, slots);
    o[0] = o[0] * a.x, o[1] = o[1] * a.y, o[2] = o[2] * a.x, o[3] = o[3] * a.y;
    if (seen >= KEYS) {
      add_block<KEYS / 16>(one, two, own, o);
    } else {
      if (seen % 16 != 0) clear_values(seen < BOX ? one : two, seen % BOX);
      add_part(one, two, own, (seen + 15) / 16, o);
    }
    give_back(r, slots, count);
    move_on(r, p, count);
  }
}

GPU Group group_at(const Unit &u, int first) {
  const int seen = u.last + 1 - first * BOX;
  return {least(u.boxes - first, BOXES), seen,
          seen - int(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4)};
}

// Element g of columns 2 t, 2 t + 1 becomes elements 2 t, 2 t + 1 of column g.
GPU uint32_t turn(uint32_t pair) {
  uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

GPU void store(const tl_cached_args &g, const Unit &u, const Shared &shared, const float (&o)[4]) {
  const int lane = threadIdx.x % 32, channel = threadIdx.x / 32 * 16;
  const int64_t first = ((int64_t)u.row * g.heads + u.kv_head * g.group) * BOX + channel;
  const float2 l = *(const float2 *)&shared.l[lane % 4 * 2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float x = o[2 * i] / l.x, y = o[2 * i + 1] / l.y;
    if (g.o_is_bf16) {
      const uint32_t pair = turn(bf16_pair(x, y));
      if (lane / 4 < g.group)
        *(uint32_t *)((uint16_t *)g.o + first + lane / 4 * BOX + 8 * i + lane % 4 * 2) = pair;
    } else {
      float *to = (float *)g.o + first + 8 * i + lane / 4;
      const int head = lane % 4 * 2;
      if (head < g.group) to[head * BOX] = x;
      if (head + 1 < g.group) to[(head + 1) * BOX] = y;
    }
  }
}

// A row that is none: +0; one whose request or position there is not: NaN.
GPU void fill_row(const tl_cached_args &g, int64_t row, int kv_head, uint32_t bits) {
  const int count = g.group * g.value_width;
  const int64_t first = row * g.heads * g.value_width + (int64_t)kv_head * count;
  for (int i = threadIdx.x; i < count; i += 32 * READERS) {
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[first + i] = uint16_t(bits >> 16);
    else
      ((uint32_t *)g.o)[first + i] = bits;
  }
}

GPU void attend(const tl_cached_args &g, const Unit &u, const Ring &r, Place &p, Shared &shared) {
  float o[4] = {};
  float2 m = {-TL_INFINITY, -TL_INFINITY};
#pragma unroll 1
  for (int first = 0; first < u.boxes; first += BOXES) {
    const Group group = group_at(u, first);
    float s[BOXES][4];
    score(r, p, group, s, shared);
    named_sync<MEET>(MAXIMA);
    soften_all(g, group, s, m, shared);
    named_sync<MEET>(WEIGHTS);
    add_values(r, p, group, shared, o);
  }
  named_sync<MEET>(TOTALS);
  store(g, u, shared, o);
}

// The units of this block, as warps 0 .. 3 see them. `query`: of the first one.
GPU void attend_all(const tl_cached_args &g, Unit u, const Ring &r, int units, uint2 query,
                    Shared &shared) {
  Place p = {0, 0};
#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int next = unit + gridDim.x;
    const Named name = name_of(g, next / g.kv_heads);
    store_query(query, shared);
    query = load_query(g, next < units ? next : unit);
    if (u.boxes > 0)
      attend(g, u, r, p, shared);
    else
      fill_row(g, u.row, u.kv_head, u.request < 0 ? 0 : 0x7fffffffu);
    u = unit_of(g, next, name.request, name.position);
  }
}

// The levels of a group's blocks, of head lane / 4; blocks behind the last one have none.
GPU void raise(const tl_cached_args &g, const Shared &shared, float &m, float (&t)[BLOCKS]) {
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
    for (int w = 0; w < READERS; w++) m = fmaxf(m, shared.most[b][w][threadIdx.x % 32 / 4]);
    t[b] = m * g.factor;
  }
}

// The same for the warp of sums.
GPU void sum_all(const tl_cached_args &g, Unit u, int units, Shared &shared) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int next = unit + gridDim.x;
    const Named name = name_of(g, next / g.kv_heads);
    float m = -TL_INFINITY, level = -TL_INFINITY, l = 0.0f;
#pragma unroll 1
    for (int first = 0; first < u.boxes; first += BOXES) {
      const int boxes = least(u.boxes - first, BOXES);
      float t[BLOCKS];
      named_sync<MEET>(MAXIMA);
      raise(g, shared, m, t);
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) {
        const float a = fading(level, t[b]);
        if (lane % 4 == 0) shared.fade[b][lane / 4] = a;
        level = t[b];
      }
      named_sync<MEET>(WEIGHTS);
#pragma unroll 1
      for (int i = 0; i < boxes; i++) {
        if (i % 2 == 0) l = l * shared.fade[i / 2][lane / 4];
        float w[16];
#pragma unroll
        for (int j = 0; j < 16; j++) {
          const int key = i * BOX + j / 2 * 8 + place_of_key(lane % 4 * 2 + j % 2);
          w[j] = shared.weight[key][lane / 4];
        }
#pragma unroll
        for (int j = 0; j < 16; j++) l = l + w[j];
      }
    }
    l = sum_of_four(l);
    if (u.boxes > 0) {
      if (lane % 4 == 0) shared.l[lane / 4] = l;
      named_arrive<MEET>(TOTALS);
    }
    u = unit_of(g, next, name.request, name.position);
  }
}

extern "C" __global__ void __launch_bounds__(TL_CACHED_HOPPER_THREADS, TL_CACHED_HOPPER_TOGETHER)
    attention_cached_hopper_64(const __grid_constant__ tl_cached_hopper_args k) {
  extern __shared__ __align__(1024) unsigned char boxes[];
  const tl_cached_args &g = k.a;
  Shared &shared = *(Shared *)(boxes + k.depth * BYTES);
  const Ring r = {shared_address(boxes), shared_address(shared.full), shared_address(shared.empty),
                  k.depth};
  const int units = g.at.rows * g.kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Named name, rows[2];
  next_begin();
  if (g.ahead) {  // on their way while barriers are made
    name = name_of(g, blockIdx.x / g.kv_heads);
    for (int i = 0; i < 2; i++) rows[i] = name_of(g, threadIdx.x + i * TL_CACHED_HOPPER_THREADS);
  }
  if (threadIdx.x < k.depth) {
    barrier_make(r.full + 8 * threadIdx.x, 1);
    barrier_make(r.empty + 8 * threadIdx.x, READERS);
  }
  barriers_made();
  if (warp == 1 && lane < TL_CACHED_HOPPER_MAPS) map_prefetch(&k.keys[lane]);
  if (warp == 2 && lane < TL_CACHED_HOPPER_MAPS) map_prefetch(&k.values[lane]);
  if (threadIdx.x == 0) shared.written = 0;
  __syncthreads();
  if (!g.ahead) {
    earlier_wait();
    name = name_of(g, blockIdx.x / g.kv_heads);
  }
  Unit u = unit_of(g, blockIdx.x, name.request, name.position);
  if (u.boxes > 0) look_up(g, u, 0);
  const uint32_t all = (1u << BOXES) - 1;
  uint32_t later = all;
  if (g.ahead) {
    if (k.early) later = find_written(g, u, rows, shared);
    ask_first(k, u, r, all & ~later);
    earlier_wait();
  }
  const uint2 query = warp < READERS ? load_query(g, blockIdx.x) : make_uint2(0, 0);
  ask_first(k, u, r, later);
  if (warp == ASKS)
    ask_all(k, u, r, units, first_boxes(u, r));
  else if (warp == SUMS)
    sum_all(g, u, units, shared);
  else
    attend_all(g, u, r, units, query, shared);
}
