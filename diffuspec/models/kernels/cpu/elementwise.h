// Sums, norms, rotary positions and gated activations of rows.

#pragma once

#include "numbers.h"

namespace kernels {

struct Sum {
  const void *inputs, *added;
  void* outputs;
  int count;
};

void add(const Type& type, const Sum& call);

struct Norm {
  const void *inputs, *added, *weight;  // added: null, or what is added to the inputs first
  void *sums, *outputs;
  int num_rows, width;
  float epsilon;
};

void normalise(const Type& type, const Norm& call);

struct Rotation {
  void* rows;  // rotated in place
  const void *cos, *sin;
  int num_rows, row_stride, num_heads, dim;
};

void rotate(const Type& type, const Rotation& call);

struct Gate {
  const void* inputs;  // [num_rows, 2 * width]: gates, then the values to be multiplied
  void* outputs;
  int num_rows, width;
};

void gate(const Type& type, const Gate& call);

}  // namespace kernels
