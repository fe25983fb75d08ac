// Products on processors with AVX-512 and VNNI: of float32 rows, of bfloat16 rows where there are
// instructions for them, or of rows rounded to 8 bits.
//
// A row's result does not depend, to the last bit, on the other rows: each of its outputs is one
// chain of additions, from the first input to the last.

#pragma once

#include "products.h"

namespace rows {

// Whether this is such a processor, and one that multiplies bfloat16.
bool has_vectors();
bool has_bfloat16_vectors();

// Only on such a processor. Weights are [blocks of 64 outputs, steps, 64, numbers of a step]: for float32
// rows one number of any type, for bfloat16 rows two of theirs, and where they have scales four of int8.
void multiply_by_vectors(const Type& type, const Product& call, int num_threads);

}  // namespace rows
