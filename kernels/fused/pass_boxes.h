/* pass_boxes.h - maps by which the copy engine brings a pass's weights in boxes (pass_ring.cuh).
**
**   dims of a map     leaf | 64 k of the leaf | feature | k
**   a box                1 | 8                | 4       | 64: 4 KiB, half a slot
**
** What a box has beyond its leaf is zeros that no memory is read for, and no chain comes to. */
#ifndef TL_PASS_BOXES_H
#define TL_PASS_BOXES_H

#include "../../runtime/status.h"
#include "pass_args.h"

/* Whether leaves of all products are whole rows of boxes. */
int32_t tl_pass_has_boxes(const tl_pass_phase *phases, int32_t count);
/* The maps of a phase's weights; `out`: TL_GEMM_FEW_PARTS. */
tl_status tl_pass_maps(struct tl_cuda *cuda, const tl_pass_phase *phase, tl_tensor_map *out);

#endif
