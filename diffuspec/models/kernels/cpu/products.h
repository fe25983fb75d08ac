// Products of rows and a matrix, which `products.py` packs in the order in which it is read.

#pragma once

#include "numbers.h"

namespace kernels {

struct Part;  // see `quantized_products.h`

struct Matrix {
  const char* weights;     // in blocks of outputs: see `tile_products.h` and `vector_products.h`
  const float* scales;     // of outputs, where the weights are int8, else null
  const float* biases;     // these arrays are as long as the blocks have outputs
  const int32_t* offsets;  // of int8 sums by vectors, which take inputs 128 too high; else null
  int num_inputs, num_outputs;
  int weight_type;  // TypeIndex of weights that are not int8
  int num_parts;    // of a matrix that stays quantised: only biases and sizes count besides
  const Part* parts;
};

struct Product {
  Matrix matrix;
  const char* inputs;  // [num_rows, num_inputs]
  char* outputs;       // [num_rows, num_outputs]
  int num_rows;
  bool fetches = false;  // weights before they are needed
};

// By tiles where there are any for the type, else by vectors.
void multiply(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
