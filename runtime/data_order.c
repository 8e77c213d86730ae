/* data_order.c - a Feistel network that walks until it lands inside. */
#include "data_order.h"

#include <assert.h>
#include <string.h>

#include "hash.h"

enum { ROUNDS = 6 };

tl_order tl_order_new(uint64_t seed, const char *name, int64_t turn, int64_t count) {
  assert(count > 0);
  const uint64_t stream = tl_hash_bytes(name, (int64_t)strlen(name));
  return (tl_order){.key = tl_random_key_of(seed, stream), .turn = (uint64_t)turn, .count = count};
}

int64_t tl_order_at(const tl_order *order, int64_t i) {
  assert(i >= 0 && i < order->count);
  int half = 1;
  while (half < 31 && (int64_t)1 << 2 * half < order->count) half++;
  const uint64_t mask = ((uint64_t)1 << half) - 1;
  uint64_t x = (uint64_t)i;
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
      const tl_words words = tl_random_words(order->key, round << 32 | right, order->turn);
      const uint64_t next = left ^ (words.word[0] & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= (uint64_t)order->count);
  return (int64_t)x;
}
