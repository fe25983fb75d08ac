// Products with vectors: of float32 rows, of bfloat16 rows if there are instructions for them, or
// of rows rounded to 8 bits.
//
// A row's result is bitwise independent of the other rows and of the width: each of its outputs is
// one chain of additions, from the first input to the last.

#pragma once

#include "products.h"

namespace kernels {

// Weights are [blocks of 64 outputs, steps, 64, numbers of a step]: one number of any type for
// float32 rows, two bfloat16 numbers for bfloat16 rows, four int8 numbers if weights have scales.

// AVX-512 and VNNI: see kWide. bfloat16 rows only with has_bfloat16_vectors().
void multiply_by_wide_vectors(const Type& type, const Product& call, int num_threads);

// AVX2: see kNarrow. bfloat16 rows only with int8 weights.
void multiply_by_narrow_vectors(const Type& type, const Product& call, int num_threads);

// NEON: see kNeon. bfloat16 rows only with int8 weights.
void multiply_by_neon_vectors(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
