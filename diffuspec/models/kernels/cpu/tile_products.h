// Products of bfloat16 rows on processors with AMX, whose tiles hold 16 rows of 64 bytes.
//
// A row's result is bitwise independent of the other rows: a tile's rows are summed separately,
// always in the same order.

#pragma once

#include "products.h"

namespace kernels {

// Requires tiles. Weights are [blocks of 32 outputs, steps, 2 tiles], bfloat16 or int8.
void multiply_by_tiles(const Product& call, int num_threads);

}  // namespace kernels
