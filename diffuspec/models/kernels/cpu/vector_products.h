// Products by vectors: of float32 rows, of bfloat16 rows where there are instructions for them, or of
// rows rounded to 8 bits.
//
// A row's result does not depend, to the last bit, on the other rows: each of its outputs is one
// chain of additions, from the first input to the last. Nor does it depend on the width.

#pragma once

#include "products.h"

namespace kernels {

// Weights are [blocks of 64 outputs, steps, 64, numbers of a step]: for float32 rows one number of any
// type, for bfloat16 rows two of theirs, and where they have scales four of int8.

// By AVX-512 and VNNI: see kWide. bfloat16 rows only with has_bfloat16_vectors().
void multiply_by_wide_vectors(const Type& type, const Product& call, int num_threads);

// By AVX2: see kNarrow. bfloat16 rows only in 8 bits.
void multiply_by_narrow_vectors(const Type& type, const Product& call, int num_threads);

// By NEON: see kNeon. bfloat16 rows only in 8 bits.
void multiply_by_neon_vectors(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
