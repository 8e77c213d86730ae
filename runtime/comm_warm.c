/* comm_warm.c - a list that stays in order. */
#include "comm_warm.h"

int32_t tl_warm_add(int32_t rank, int32_t peer, int32_t *peers, int32_t count) {
  int32_t at = count;
  while (at > 0 && (rank ^ peers[at - 1]) > (rank ^ peer)) at--;
  if (peer == rank || (at > 0 && peers[at - 1] == peer)) return count;
  for (int32_t i = count; i > at; i--) peers[i] = peers[i - 1];
  peers[at] = peer;
  return count + 1;
}
