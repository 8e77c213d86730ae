/* random.h - numbers that depend on what they are for, never on who asks.
**
** Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
** 2011): ten rounds that turn a counter of four words and a key of two words into four words.
**
**   key      (policy.seed, stream)      stream: the hash of a name, see below
**   counter  index low, index high, step low, step high
**
**   what      stream                        index                              step   words
**   init      XXH64 of the weight's name    element in the logical tensor      0      0 and 1
**   dropout   XXH64 of the op's name        element in the logical activation  step   0
**   data      XXH64 of "data/" .. source    place in the order                 epoch  0 and 1
**
** So every element has a counter of its own: shards, micro-batches, threads and GPUs compute what
** they need and agree on every word.
*/
#ifndef TL_RANDOM_H
#define TL_RANDOM_H

#include <stdint.h>

#if defined(__CUDACC__)
#define TL_RANDOM static __host__ __device__ __forceinline__
#else
#define TL_RANDOM static inline
#endif

typedef struct tl_words {
  uint32_t word[4];
} tl_words;

typedef struct tl_random_key {
  uint32_t word[2];
} tl_random_key;

/* A bijection of 64 bits in which every bit of the input reaches every bit of the output: the
** finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014, variant 13 of Stafford). */
TL_RANDOM uint64_t tl_mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

TL_RANDOM tl_words tl_philox(tl_words counter, tl_random_key key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t even = (uint64_t)0xd2511f53u * counter.word[0];
    const uint64_t odd = (uint64_t)0xcd9e8d57u * counter.word[2];
    counter = (tl_words){
        {(uint32_t)(odd >> 32) ^ counter.word[1] ^ key.word[0], (uint32_t)odd,
         (uint32_t)(even >> 32) ^ counter.word[3] ^ key.word[1], (uint32_t)even}
    };
    key.word[0] += 0x9e3779b9u;
    key.word[1] += 0xbb67ae85u;
  }
  return counter;
}

/* The key of a stream: mix64(seed + mix64(stream)), low word first. */
TL_RANDOM tl_random_key tl_random_key_of(uint64_t seed, uint64_t stream) {
  const uint64_t mixed = tl_mix64(seed + tl_mix64(stream));
  return (tl_random_key){
      {(uint32_t)mixed, (uint32_t)(mixed >> 32)}
  };
}

/* The four words of element `index` at `step`. */
TL_RANDOM tl_words tl_random_words(tl_random_key key, uint64_t index, uint64_t step) {
  const tl_words counter = {
      {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)step, (uint32_t)(step >> 32)}
  };
  return tl_philox(counter, key);
}

/* The upper 24 bits of a word, as a float in [0, 1): every value is exact. */
TL_RANDOM float tl_random_unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

#endif
