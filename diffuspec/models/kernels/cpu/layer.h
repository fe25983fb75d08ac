// Decoder layers of the Llama family whose products are those of `products.h`.

#pragma once

#include <cstdint>

#include "attention.h"
#include "products.h"

namespace kernels {

struct Layer {
  const void* input_norm;                // [hidden], before attention; may be null
  const void* output_norm;               // [hidden], before the gated layers
  const void *query_norm, *key_norm;     // [dim]; may be null
  Matrix qkv, output, gate_up, down;
  int index, num_heads, num_kv_heads, dim, window;
  float epsilon, scaling;
};

// Successive rows of one sequence: see `Attention`.
struct Piece {
  char *keys, *values;     // addresses in layer 0 of the cache
  int64_t layer_stride;    // bytes between layers
  int64_t page_stride, head_stride;  // numbers between pages and between heads
  int64_t has_transposed_keys;  // see `Attention`
  const int32_t* pages;    // the sequence's, one array for all of its pieces
  Lists lists;
  int first_row, num_rows, start, base;  // start: index of the first row in the cache
};

struct Batch {
  const Type* type;
  const void *inputs, *cos, *sin;  // inputs [num_rows, hidden]; cos and sin [num_rows, dim]
  void* outputs;                   // [num_rows, hidden]
  const Piece* pieces;
  int num_pieces, num_rows, num_threads;
};

// Runs the rows through successive layers.
void decode(const Layer* layers, int num_layers, const Batch& batch);

}  // namespace kernels
