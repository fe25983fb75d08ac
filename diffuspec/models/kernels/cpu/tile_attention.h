// Attention in bfloat16 by products of tiles.
//
// Weights and outputs are rounded to bfloat16. As in `attention.h`, a row's result is bitwise
// independent of the other rows: each query has its own lane, and columns are processed in the same
// blocks.

#pragma once

#include "attention.h"

namespace kernels {

bool can_attend_by_tiles(const Attention& call);  // for bfloat16

// Writes the attention of the query heads that share one key head. The cache must contain the new
// rows.
void attend_by_tiles(const Attention& call, int kv_head);

}  // namespace kernels
