/* grouped_turns.cuh - weight gradients of experts with some hundred rows: as grouped_hopper.cuh,
** but with a tile for each of the two warpgroups, in turn. Same bits.
**
**   warpgroup 1   [products of tile 0][sums leave  ][products of tile 2][sums leave  ]
**   warpgroup 2                       [products of tile 1][sums leave  ][products of ..
**   ring          | tile 0           | tile 1            | tile 2             |
**
** A gradient of an expert with 500 rows has 8 slots of products, and its f32 sums need half as long
** to reach the buffer. Where both warpgroups share a tile nothing is multiplied meanwhile. Here a
** block's 128 rows are one warpgroup's, twice as many sums a thread, and slots of a tile are read
** by it alone. Tiles go along the columns: outputs that leave together are whole rows.
**
** Who reads a slot has read it before anybody writes there again. racecheck does not see that, and
** names the reads below as hazards: of the rows beside a slot, with the loader's write for the next
** round, and of outputs in a slot, with zeros that are written there in a later one.
**
**   lanes      read -> products (a whole warp at once) -> products_wait -> lanes 0, 1: `empty`
**   loader                                      waits for `empty` of all 4 warps of both blocks,
**                                               writes rows, copies into the slot -> `full`
**   warpgroup  waits for `full` -> zeros -> named_sync -> products
**
** A lane decides by the rows that it reads whether to write zeros, and no product begins before all
** 32 lanes have come to it, so none is behind when lanes 0 and 1 speak. Outputs are read between
** `full` and a __syncwarp. Parities cannot be a round off: a warpgroup begins at its turn, when the
** other one has waited for every slot before (consume).
*/
#ifndef TL_GROUPED_TURNS_CUH
#define TL_GROUPED_TURNS_CUH

#include "grouped_hopper.cuh"

enum { TURN = 4 /* names of two barriers: the turn of a warpgroup */ };

template <class S>
struct GroupedTurns : Grouped<GRAD_WEIGHT, S, 1> {
  typedef Grouped<GRAD_WEIGHT, S, 1> Base;
  static constexpr int columns = S::columns, sums = S::sums;  // sums: of 64 rows

  // Past `count` slots that the other warpgroup reads.
  __device__ __forceinline__ static void skip(Turn<S::slots> &turn, int count) {
    const int to = turn.slot + count;
    turn.slot = to % S::slots;
    turn.parity ^= to / S::slots & 1;
  }

  // The next slot of a chain, complete, and zeros in both factors where its segment has ended.
  __device__ __forceinline__ void prepare(const Turn<S::slots> &turn, int name) const {
    barrier_wait(this->full + 8 * turn.slot, turn.parity);
    const int rows = this->segment_rows[turn.slot];
    if (rows >= DEPTH) return;
    const uint32_t at = this->ring + turn.slot * S::slot_bytes;
#pragma unroll 1
    for (int box = 0; box < 2 + columns / 64; box++)
#pragma unroll 1
      for (int i = rows * 8 + threadIdx.x % 128; i < DEPTH * 8; i += 128)
        store_shared_f32(at + box * BOX + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    fence_async();
    named_sync<128>(name);
  }

  // 64 k of both halves: four steps of their chains.
  __device__ __forceinline__ void multiply(const Turn<S::slots> &turn, float *low,
                                           float *high) const {
    const uint32_t at = uniform(this->ring + turn.slot * S::slot_bytes);
    const uint64_t a = factor_at<ACROSS>(at), below = factor_at<ACROSS>(at + BOX);
    const uint64_t b = factor_at<ACROSS>(at + A_BYTES);
    products_begin();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      const uint64_t step = k * factor_step<ACROSS>;
      product<columns, ACROSS, ACROSS>::run(low, a + step, b + step, 1);
      product<columns, ACROSS, ACROSS>::run(high, below + step, b + step, 1);
    }
    products_commit();
  }

  // The chains of an expert's segments, on top of the sums; slots: one at least. The other
  // warpgroup may go on when the last products have been given out.
  __device__ __forceinline__ void chain(Turn<S::slots> &turn, int own, uint32_t there, int slots,
                                        bool goes_on, float *low, float *high) const {
    prepare(turn, 1 + own);
    multiply(turn, low, high);
    int last = turn.slot;
    turn.next();
#pragma unroll 1
    for (int i = 1; i < slots; i++) {
      prepare(turn, 1 + own);
      multiply(turn, low, high);
      products_wait<1>();
      this->release(there, last);
      last = turn.slot;
      turn.next();
    }
    if (goes_on) named_arrive<256>(TURN + 1 - own);
    products_wait<0>();
    hold<sums>(low);
    hold<sums>(high);
    this->release(there, last);
  }

  // Sums = what the output holds, or that + sums: 64 columns a slot, boxes of 64 rows x 32 columns.
  template <bool add>
  __device__ __forceinline__ void take_output(Turn<S::slots> &turn, uint32_t there, float *low,
                                              float *high) const {
    const typename Base::Spot spot;
#pragma unroll
    for (int q = 0; q < columns / 64; q++) {
      const uint32_t box = this->ring + turn.slot * S::slot_bytes + spot.at;
      barrier_wait(this->full + 8 * turn.slot, turn.parity);
#pragma unroll
      for (int j = 0; j < 16; j++) {
        float *v = (j < 8 ? low : high) + (q * 8 + j % 8) * 4;
        const uint32_t from = box + j / 4 * BOX + ((j % 4 * 32) ^ spot.turned);
        const float2 upper = load_shared_f32x2(from), lower = load_shared_f32x2(from + 1024);
        v[0] = add ? upper.x + v[0] : upper.x, v[1] = add ? upper.y + v[1] : upper.y;
        v[2] = add ? lower.x + v[2] : lower.x, v[3] = add ? lower.y + v[3] : lower.y;
      }
      __syncwarp();
      this->release(there, turn.slot);
      turn.next();
    }
  }

  // Slots of a tile that hold nothing for this block are only given back.
  __device__ __forceinline__ void pass(Turn<S::slots> &turn, uint32_t there, int slots) const {
    for (int i = 0; i < slots; i++) {
      barrier_wait(this->full + 8 * turn.slot, turn.parity);
      __syncwarp();
      this->release(there, turn.slot);
      turn.next();
    }
  }

  // A tile of this warpgroup. goes_on: another one follows, which the other warpgroup has.
  __device__ __forceinline__ void sum_tile(const tl_grouped_hopper_args &k, const ExpertTile &t,
                                           Turn<S::slots> &turn, int own, uint32_t there,
                                           bool goes_on) const {
    const tl_gemm_hopper_args &g = k.product;
    const uint32_t buffer = this->ring + S::slots * S::slot_bytes + own * S::room;
    const int m = t.row + this->rank * ROWS, slots = this->slots_of(k, t.expert, 0);
    const bool adds = g.start == START_ADD && slots > 0 && m < g.rows;
    float low[sums], high[sums];
    if (slots == 0) {
      if (goes_on) named_arrive<256>(TURN + 1 - own);
      if (g.start == START_RESUME) return;
      this->add_nothing(k, t, m);
      this->add_nothing(k, t, m + HALF_ROWS);
      return;
    }
    if (m >= g.rows) {
      pass(turn, there, slots + held_slots(g));
      if (goes_on) named_arrive<256>(TURN + 1 - own);
      return;
    }
    if (g.start == START_RESUME) {
      take_output<false>(turn, there, low, high);
    } else {
#pragma unroll
      for (int e = 0; e < sums; e++) low[e] = high[e] = 0;
    }
    hold<sums>(low);
    hold<sums>(high);
    chain(turn, own, there, slots, goes_on && !adds, low, high);
    if (adds) {
      take_output<true>(turn, there, low, high);
      if (goes_on) named_arrive<256>(TURN + 1 - own);
    }
    this->store(g, t, buffer, 1 + own, m, HALF_ROWS, low);
    if (m + HALF_ROWS < g.rows) this->store(g, t, buffer, 1 + own, m + HALF_ROWS, HALF_ROWS, high);
  }

  // Slots with what the output of a tile holds.
  __device__ __forceinline__ static int held_slots(const tl_gemm_hopper_args &g) {
    return g.start == START_ZERO ? 0 : columns / 64;
  }

  // A warpgroup waits for its turn before it waits for a slot: the parity of a slot's barrier tells
  // neighbouring rounds apart, and without a turn it might be rounds ahead of the ring.
  __device__ __forceinline__ void consume(const tl_grouped_hopper_args &k) const {
    const int own = threadIdx.x / 128 - 1, tiles = this->count_tiles(k);
    const int first = blockIdx.x / S::blocks, step = gridDim.x / S::blocks;
    const uint32_t there = in_block(this->empty, threadIdx.x % S::blocks);
    Turn<S::slots> turn = {0, 0};
    int whose = 0;
    for (int i = first; i < tiles; i += step, whose ^= 1) {
      const ExpertTile t = this->find(k, i);
      if (whose != own) {
        const int slots = this->slots_of(k, t.expert, 0);
        if (slots > 0) skip(turn, slots + held_slots(k.product));
        continue;
      }
      if (i != first) named_sync<256>(TURN + own);
      sum_tile(k, t, turn, own, there, i + step < tiles);
    }
    if (threadIdx.x % 128 == 0) stores_read<0>();  // then shared memory may go
  }

  static __device__ __forceinline__ void run(const tl_grouped_hopper_args &k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    GroupedTurns h;
    h.segment_rows = (int32_t *)(shared + S::bytes);
    h.first = h.segment_rows + S::slots;
    h.open(shared, 4);
    h.make_list(k);
    cluster_sync();
    Base::divide([&] { h.produce(k); }, [&] { h.consume(k); });
  }
};

#endif
