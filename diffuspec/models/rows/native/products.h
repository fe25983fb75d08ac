// Products of bfloat16 rows and a matrix on processors with AMX, whose tiles hold 16 rows of 64 bytes.
//
// A row's result does not depend, to the last bit, on the other rows: a tile's rows are summed apart
// from each other, always in the same order. `products.py` packs the matrix.

#pragma once

namespace rows {

struct Matrix {
  const char* tiles;    // [blocks, steps, 2 tiles], bfloat16 or int8
  const float* scales;  // of outputs, [blocks * 32], where the tiles are int8, else null
  const float* biases;  // [blocks * 32]
  int num_inputs, num_outputs;
};

struct Product {
  Matrix matrix;
  const char* inputs;  // [num_rows, num_inputs]
  char* outputs;       // [num_rows, num_outputs]
  int num_rows;
};

// Only where there are tiles.
void multiply(const Product& call, int num_threads);

}  // namespace rows
