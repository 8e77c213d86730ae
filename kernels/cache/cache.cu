// cache.cu - writes keys and values to their pages: cache.h says where. Threads of a row stand side
// by side, first those of k, then those of v.
#include "../device.cuh"
#include "cache_device.cuh"

template <class T>
CACHE_GPU void write_element(const tl_cache_write_args &g) {
  tl_after_earlier();
  const int keys = g.kv_heads * g.width, all = keys + g.kv_heads * g.value_width;
  const int64_t thread = (int64_t)blockIdx.x * TL_DEVICE_THREADS + threadIdx.x;
  const int64_t row = thread / all;
  const int at = (int)(thread - row * all);
  if (row >= g.at.rows) return;
  const int request = g.at.request[row], position = g.at.position[row];
  if (request < 0 || !is_place(g.at, request, position)) return;
  const int64_t page = page_of(g.at, request, position), place = page_place(g.at, position);
  if (page < 0) return;
  if (at < keys) {
    const T *k = (const T *)g.k + row * keys;
    ((T *)g.keys)[(page * keys + at) * g.at.page + place] = k[at];
  } else {
    const T *v = (const T *)g.v + row * (all - keys);
    ((T *)g.values)[(page * g.at.page + place) * (all - keys) + at - keys] = v[at - keys];
  }
}

extern "C" __global__ void __launch_bounds__(TL_DEVICE_THREADS)
    cache_write_2(const __grid_constant__ tl_cache_write_args g) {
  write_element<uint16_t>(g);
}

extern "C" __global__ void __launch_bounds__(TL_DEVICE_THREADS)
    cache_write_4(const __grid_constant__ tl_cache_write_args g) {
  write_element<uint32_t>(g);
}
