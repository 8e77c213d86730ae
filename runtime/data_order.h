/* data_order.h - orders that nobody stores: shuffled numbers from a seed, by computation.
**
** tl_order_at(order, i) is a permutation of 0 .. count - 1. It is a Feistel network over the
** smallest square of a power of two that holds `count`, walked until it lands inside:
**
**   h      smallest number >= 1 with 4^h >= count        left, right: h bits each
**   x = i
**   do   left = x >> h, right = x mod 2^h
**        for round = 0 .. 5:
**          left, right = right, left xor (word mod 2^h)
**                        word = word 0 of tl_random_words(key, round * 2^32 + right, turn)
**        x = left * 2^h + right
**   while x >= count
**
**   key = tl_random_key_of(seed, XXH64(name))     turn: the epoch or the cycle
**
** A step of the walk stays inside with probability above 1/4, so about 4 steps are the most that
** is ever usual. Any place of any order costs the same, and no memory.
*/
#ifndef TL_DATA_ORDER_H
#define TL_DATA_ORDER_H

#include <stdint.h>

#include "random.h"

typedef struct tl_order {
  tl_random_key key;
  uint64_t turn;
  int64_t count; /* at least 1 */
} tl_order;

tl_order tl_order_new(uint64_t seed, const char *name, int64_t turn, int64_t count);

/* Where place `i` of the order points, 0 <= i < count. */
int64_t tl_order_at(const tl_order *order, int64_t i);

#endif
