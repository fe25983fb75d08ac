// Attention in bfloat16 by products of tiles.
//
// Weights are rounded to bfloat16, and so are their sums. As in `attention.h`, a row's result does
// not depend, to the last bit, on the other rows: each query has a lane of its own, and columns are
// taken in the same blocks.

#pragma once

#include "attention.h"

namespace kernels {

bool can_attend_by_tiles(const Attention& call);  // where the numbers are bfloat16

// Writes the attention of the query heads that share one key head, whose cache has the new rows.
void attend_by_tiles(const Attention& call, int kv_head);

}  // namespace kernels
