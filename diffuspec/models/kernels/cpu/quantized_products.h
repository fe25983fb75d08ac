// Products with weights that stay quantised in memory: whole numbers of 4 or 8 bits in groups of
// inputs, each of which has a scale and an offset for each output.

#pragma once

#include "products.h"

namespace kernels {

// Some of a matrix's outputs: see `quantized.py`. A weight is `number * scale + offset`, in float32.
struct Part {
  const int32_t* weights;      // words of successive inputs, [blocks, inputs * bits / 32, 64]
  const uint8_t* supers;       // [blocks, groups / ratio, 64]: scales, or what they share
  const int8_t* codes;         // [blocks, groups, 64], by which those are multiplied, or null
  const uint8_t* super_offsets;  // the same for offsets, or null: they are -zero * scale
  const int8_t* offset_codes;
  const int8_t* zeros;  // of groups, [blocks, groups, 64], or null: all are `zero`
  int bits, zero, group, ratio;  // inputs of a group, and groups that share a super scale
  int scale_type;                // TypeIndex of supers
  int first_output, num_outputs;
  int quantizes_rows;  // to 8 bits, before they are multiplied: see `dynamic_products.h`
};

// A row's sums begin with the biases and take the inputs one by one, whatever rows are beside it.
void multiply_quantized(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
