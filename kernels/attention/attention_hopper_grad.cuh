/* attention_hopper_grad.cuh - what both backward kernels of Hopper share: own rows of two matrices,
** and a ring of slots for `step` rows of two others.
**
**   query    own q, do; stream k, v      s = q k, g = do v    dq += ds k
**   key      own k, v; stream q, do      s = k q, g = v do    dv += p do, dk += ds q
**   wide     the same; a warpgroup for dv, one for dk
**
** p and ds are rounded in registers, where they are the fragments of the next product.
*/
#ifndef TL_ATTENTION_HOPPER_GRAD_CUH
#define TL_ATTENTION_HOPPER_GRAD_CUH

#include "attention_hopper.cuh"

// Places in shared memory. `sums_bytes` stand beside each slot; ordinary instructions write and
// read them, so there every lane of the load warp and every reader arrives.
template <int width, int step, int slots, int sums_bytes, int own_rows = OWN_ROWS>
struct Places {
  enum {
    OWN = 2 * own_rows * width,  // bytes of one matrix; two follow each other
    PART = 2 * step * width,     // of a slot: two follow each other
    STREAM = 2 * OWN,
    SUMS = STREAM + 2 * slots * PART,
    BARRIERS = SUMS + slots * sums_bytes,
    OWN_FULL = BARRIERS,
    OWN_EMPTY = OWN_FULL + 8,
    BORDER = OWN_EMPTY + 8,  // the end of a segment has arrived
    FULL = BORDER + 8,
    EMPTY = FULL + 8 * slots,
    ITEM = BARRIERS + 256,
    FILLERS = sums_bytes > 0 ? 32 : 1,
    SLOT_READERS = sums_bytes > 0 ? READER_THREADS : READERS
  };

  static __device__ __forceinline__ void make_barriers(uint32_t base) {
    if (threadIdx.x == 0) {
      barrier_make(base + OWN_FULL, 1);
      barrier_make(base + OWN_EMPTY, READER_THREADS);
      barrier_make(base + BORDER, 1);
      for (int i = 0; i < slots; i++) {
        barrier_make(base + FULL + 8 * i, FILLERS);
        barrier_make(base + EMPTY + 8 * i, SLOT_READERS);
      }
      barriers_made();
      fence_async();
    }
    __syncthreads();
  }

  // The load warp.
  struct Loader {
    uint32_t base;
    Ring<1> own, border;
    Ring<slots> ring;

    __device__ __forceinline__ void item(const Item &item, const tl_tensor_map &first,
                                         const tl_tensor_map &second) {
      barrier_wait(base + OWN_EMPTY, own.parity ^ 1);
      own.next();
      if (threadIdx.x != 0) return;
      store_item(base + ITEM, item);
      if (item.head < 0) {
        barrier_arrive(base + OWN_FULL);
        return;
      }
      const int row = item.start + item.offset;
      barrier_expect(base + OWN_FULL, 2 * OWN);
      load_rows<width, own_rows, step>(base, first, base + OWN_FULL, row, item.head);
      load_rows<width, own_rows, step>(base + OWN, second, base + OWN_FULL, row, item.head);
    }
    __device__ __forceinline__ uint32_t slot() const {
      return base + STREAM + ring.slot * 2 * PART;
    }

    // Rows from `at` of the segment on. Those past its end become zeros, in the second matrix only
    // where `both` is set: what stands there may not be a number. `beside` adds to the slot.
    template <class Beside>
    __device__ __forceinline__ void stream(const Item &item, int at, int head, bool both,
                                           const tl_tensor_map &first, const tl_tensor_map &second,
                                           Beside beside) {
      const uint32_t full = base + FULL + 8 * ring.slot;
      const int left = item.length - at;
      const uint32_t bar = base + BORDER;
      barrier_wait(base + EMPTY + 8 * ring.slot, ring.parity ^ 1);
      beside();
      __syncwarp();
      if (threadIdx.x == 0) {
        const uint32_t told = left < step ? bar : full;
        barrier_expect(told, 2 * PART);
        load_rows<width, step, step>(slot(), first, told, item.start + at, head);
        load_rows<width, step, step>(slot() + PART, second, told, item.start + at, head);
      } else if constexpr (FILLERS > 1) {
        if (left >= step) barrier_arrive(full);
      }
      if (left < step) {
        barrier_wait(bar, border.parity);
        border.next();
        clear_rows<width, step>(slot(), left, threadIdx.x);
        if (both) clear_rows<width, step>(slot() + PART, left, threadIdx.x);
        fence_async();
        __syncwarp();
        if (FILLERS > 1 || threadIdx.x == 0) barrier_arrive(full);
      }
      ring.next();
    }
  };

  // A warp of the two warpgroups.
  struct Reader {
    uint32_t base;
    int warpgroup, row;  // 0 or 1; the warp's first own row
    Ring<1> own;
    Ring<slots> ring;
    int before;  // the slot before

    // The own rows and the name of the tile.
    __device__ __forceinline__ void own_read() const { barrier_arrive(base + OWN_EMPTY); }
    __device__ __forceinline__ Item item() {
      barrier_wait(base + OWN_FULL, own.parity);
      own.next();
      before = -1;
      return load_item(base + ITEM);
    }
    __device__ __forceinline__ uint32_t slot() const {
      return base + STREAM + ring.slot * 2 * PART;
    }
    __device__ __forceinline__ void wait() const {
      barrier_wait(base + FULL + 8 * ring.slot, ring.parity);
    }
    // The products with the slot before have ended.
    __device__ __forceinline__ void slot_read() {
      if (before < 0) return;
      __syncwarp();
      if (SLOT_READERS > READERS || threadIdx.x % 32 == 0)
        barrier_arrive(base + EMPTY + 8 * before);
    }
    __device__ __forceinline__ void next() {
      before = ring.slot;
      ring.next();
    }
  };
};

// A kernel: one warp loads, two warpgroups take tile after tile. Threads of the first warpgroup
// keep `fewer` registers, those of the others `more`.
template <class Kernel, int fewer, int more>
GPU void run_tiles(const tl_attention_hopper_args &a) {
  extern __shared__ unsigned char shared[];
  const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  Kernel::P::make_barriers(base);
  if (warp < 4) {
    registers_fewer<fewer>();
    if (warp == 0) Kernel::load(a, base);
  } else {
    registers_more<more>();
    typename Kernel::P::Reader to = {base, warp / 4 - 1, 16 * (warp - 4)};
    while (true) {
      const Item item = to.item();
      if (item.head < 0) break;
      Kernel::tile(a, to, item);
    }
  }
}

template <int count>
GPU void clear(float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) x[i] = 0.0f;
}

#endif
