// Products of rows with a matrix, which `products.py` packs in reading order.

#pragma once

#include <algorithm>

#include "numbers.h"

namespace kernels {

struct Part;  // see `quantized_products.h`

struct Matrix {
  const char* weights;     // in blocks of outputs: see `tile_products.h` and `vector_products.h`
  const float* scales;     // scales of the outputs if the weights are int8, else null
  const float* biases;     // these arrays have the padded number of outputs
  // corrections of int8 sums of vectors, which offset inputs by 128; else null
  const int32_t* offsets;
  int num_inputs, num_outputs;
  int weight_type;  // TypeIndex of weights that are not int8
  // parts of a quantised matrix; then only biases and sizes of this struct are used
  int num_parts;
  const Part* parts;
};

struct Product {
  Matrix matrix;
  const char* inputs;  // [num_rows, num_inputs]
  char* outputs;       // [num_rows, num_outputs]
  int num_rows;
  bool fetches = false;  // whether to prefetch weights
};

// The number of threads, at most `num_threads`, for which a matrix has enough weights.
inline int useful_threads(const Matrix& matrix, int num_threads) {
  constexpr int64_t kWorthAThread = 1 << 18;  // weights that are worth a thread
  const int64_t num_weights = int64_t{matrix.num_inputs} * matrix.num_outputs;
  return std::min<int64_t>(num_threads, 1 + num_weights / kWorthAThread);
}

// Uses tiles if there are any for the type, else vectors.
void multiply(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
