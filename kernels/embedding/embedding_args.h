/* embedding_args.h - arguments of the embedding kernels. */
#ifndef TL_EMBEDDING_ARGS_H
#define TL_EMBEDDING_ARGS_H

#include "../device_args.h"

typedef struct tl_embedding_args {
  tl_array table, y;
  const int32_t *ids;
  int64_t first, vocab, dim, tokens;
} tl_embedding_args;

/* The rows of an id are a list: head[id of the part] is one of its rows, relative to `first`,
** next[row] another one; -1 ends it. */
typedef struct tl_embedding_grad_args {
  tl_array dy, table;
  const int32_t *ids;
  int32_t *head, *next;
  int64_t first_id, vocab, dim, first, count;
  int32_t mode;
} tl_embedding_grad_args;

typedef struct tl_pick_rows_args {
  tl_array x, y;
  const int32_t *rows;
  int64_t all, dim, count; /* rows of x, their width, rows of y */
} tl_pick_rows_args;

typedef struct tl_position_ids_args {
  const int32_t *cu;
  int32_t *ids;
  int64_t entries, rows;
} tl_position_ids_args;

#endif
