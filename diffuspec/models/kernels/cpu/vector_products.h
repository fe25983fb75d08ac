// Products with vectors: in float32, in bfloat16 if there are instructions for it, or of rows rounded
// to 8 bits. Rows in 16 bits are widened where there are none.
//
// A row's result is bitwise independent of the other rows and of the width: each of its outputs is
// one chain of additions, from the first input to the last.

#pragma once

#include "products.h"

namespace kernels {

// Weights are [blocks of 64 outputs, steps, 64, numbers of a step]: one number of any type, two
// bfloat16 numbers for bfloat16 rows with has_bfloat16_vectors(), four int8 numbers if weights have
// scales.

// AVX-512 and VNNI: see kWide.
void multiply_by_wide_vectors(const Type& type, const Product& call, int num_threads);

// AVX2: see kNarrow.
void multiply_by_narrow_vectors(const Type& type, const Product& call, int num_threads);

// NEON with dot products: see kDots.
void multiply_by_dots(const Type& type, const Product& call, int num_threads);

// What the architecture has: NEON on aarch64.
void multiply_by_plain_vectors(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
