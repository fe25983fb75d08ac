// Products on processors with AVX-512 and VNNI: of float32 rows, or of rows rounded to 8 bits.
//
// A row's result does not depend, to the last bit, on the other rows: each of its outputs is one
// chain of additions, from the first input to the last.

#pragma once

#include "products.h"

namespace rows {

// Whether this is such a processor.
bool has_vectors();

// Only on such a processor. Weights for float32 rows are of any type, [blocks of 64 outputs, inputs, 64];
// where they have scales they are int8, [blocks of 64 outputs, inputs / 4, 64, 4].
void multiply_by_vectors(const Type& type, const Product& call, int num_threads);

}  // namespace rows
