/* embedding.h - rows by token id, and their gradient. This text is the specification.
**
**   ids (T) i32     table (V, d) f32 or bf16: ids first .. first + V - 1 (a rank's part, or all)
**   y, dy (T, d) f32 or bf16     dtable (V, d) f32     cu (segments + 1) i32
**
** embedding (int first)
**   y[t] = round(table[ids[t] - first] + 0)    in f32; + 0 turns -0 into +0, so that ranks may add
**   y[t] = +0 for an id that is not in the table's part, padding (id < 0) included. Ids are checked
**   against the vocabulary where they are loaded. On the host the table may lie in panels.
**
** embedding_grad (ints first_id, first, samples, length, mode)
**   rows first .. first + samples * length - 1 of ids and dy. For each id of the table's part:
**       chain = start;  for each of its rows, ascending:  chain = chain + dy[row]
**   mode 0   start +0; the chain is stored, +0 for an id without rows
**        1   start = the stored value; the chain is stored (rows given in several calls make the
**            bits of one call)
**        2   start +0; stored + chain is stored: one block sum added
**   An id without rows keeps its stored value in modes 1 and 2. Every id has one owner and its rows
**   ascend, so no thread or shard count changes a bit.
**
** position_ids   ids[t] = t - the start of t's segment, from cu
**
** pick_rows      x (R, d) f32 or bf16, rows (T) i32 -> y (T, d) of x's dtype
**   y[t] = x[rows[t]], bit for bit; +0 where rows[t] < 0. A row from R on is an error, and +0 on a
**   GPU, which cannot say so.
*/
#ifndef TL_EMBEDDING_H
#define TL_EMBEDDING_H

#include "../panels.h"
#include "embedding_args.h"

enum { TL_EMBEDDING_BLOCK_ROWS_MAX = TL_SCRATCH_BYTES / 16 }; /* of embedding_grad's mode 2 */

tl_status tl_host_embedding(const tl_call *call);
tl_status tl_host_embedding_grad(const tl_call *call);
tl_status tl_host_position_ids(const tl_call *call);
tl_status tl_host_pick_rows(const tl_call *call);

/* What host twin and launcher refuse (embedding_check.c). Segments are numbers in memory, which the
** host alone looks at. */
tl_status tl_embedding_check(const tl_call *call);
/* What the kernel of a call is passed; for launchers of kernels that do more in one go. */
tl_status tl_embedding_args_of(const tl_call *call, tl_embedding_args *out);
int64_t tl_embedding_dim(const tl_call *call); /* d, whichever way the table lies */
tl_status tl_embedding_grad_check(const tl_call *call);
tl_status tl_position_ids_check(const tl_call *call);
tl_status tl_pick_rows_check(const tl_call *call);

#endif
