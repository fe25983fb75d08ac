// Products with weights that stay quantised in memory: integers of 4 or 8 bits in groups of inputs;
// each group has a scale and an offset for each output.

#pragma once

#include "products.h"

namespace kernels {

// Some of a matrix's outputs: see `quantized.py`. A weight is `number * scale + offset`, in float32.
struct Part {
  const int32_t* weights;      // words of successive inputs, [blocks, inputs * bits / 32, 64]
  const uint8_t* supers;       // [blocks, groups / ratio, 64]: scales, or factors shared by groups
  // [blocks, groups, 64]: multipliers of the shared factors; may be null
  const int8_t* codes;
  const uint8_t* super_offsets;  // the same for offsets; null: offsets are -zero * scale
  const int8_t* offset_codes;
  const int8_t* zeros;  // [blocks, groups, 64]: each group's zero; null: all are `zero`
  int bits, zero, group, ratio;  // group: inputs of a group; ratio: groups that share a super scale
  int scale_type;                // TypeIndex of supers
  int first_output, num_outputs;
  // whether rows are quantised to 8 bits first, the same for all parts of a matrix: see
  // `dynamic_products.h`
  int quantizes_rows;
};

// Rows in the form in which products of some parts read them.
class PartRows {
 public:
  virtual ~PartRows() = default;

  // Whether a part can read these rows.
  virtual bool fits(const Part& part) const = 0;

  // Adds the products of all inputs with a block of a part's outputs to sums, [num_rows, 64].
  virtual void add(const Part& part, int block, const Product& call, float* sums) const = 0;
};

// A row's sums start with the biases and add the inputs in order, whatever the other rows.
void multiply_quantized(const Type& type, const Product& call, int num_threads);

}  // namespace kernels
