/* warm.c - in which order ranks meet their peers: each line of stdin is a rank and peers as they
** are added; prints the peers as they are met.
*/
#include <stdio.h>
#include <stdlib.h>

#include "../../runtime/comm_warm.h"

enum { PEERS = 256, LINE = 4096 };

int main(void) {
  char line[LINE];
  while (fgets(line, sizeof line, stdin) != NULL) {
    int32_t peers[PEERS + 1], count = 0;
    char *at = line, *end;
    const int32_t rank = (int32_t)strtol(at, &end, 10);
    for (at = end; count < PEERS; at = end) {
      const int32_t peer = (int32_t)strtol(at, &end, 10);
      if (end == at) break;
      count = tl_warm_add(rank, peer, peers, count);
    }
    for (int32_t i = 0; i < count; i++) printf("%s%d", i > 0 ? " " : "", peers[i]);
    printf("\n");
  }
  return 0;
}
