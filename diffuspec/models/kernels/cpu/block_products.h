// Shared by vector products of any width: blocks of outputs, and rows rounded to 8 bits.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products.h"

namespace kernels {

constexpr int kBlock = 64;  // outputs computed together
constexpr int kChunk = 64;  // steps whose weights fit into the first-level cache
constexpr int32_t kNoOffsets[kBlock] = {};

// The sums of rows with a block of outputs: those of row r begin at `to + r * stride`.
template <class Sum>
struct Sums {
  Sum* to;
  int64_t stride;
  const Sum* first;  // initial values, or null if the sums have been initialised

  // The sums for the outputs from one of the block on.
  Sums from(int output) const {
    return {to + output, stride, first ? first + output : nullptr};
  }
};

// Calls `compute(block)` for all blocks, in as many threads as are worthwhile.
template <class Compute>
void for_each_block(const Matrix& matrix, int num_threads, Compute compute) {
  const int num_blocks = divided_up(matrix.num_outputs, kBlock);
  num_threads = useful_threads(matrix, num_threads);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
  for (int block = 0; block < num_blocks; ++block) compute(block);
}

// Writes a row's results for a block of outputs, [kBlock].
inline void write_row(
    const Type& type, const Product& call, int row, int block, const float* numbers) {
  const int first = block * kBlock, count = std::min(kBlock, call.matrix.num_outputs - first);
  const int64_t place = int64_t{row} * call.matrix.num_outputs + first;
  type.narrow(numbers, at(call.outputs, type, place), count);
}

// Writes the results of all rows, [num_rows, kBlock].
inline void write(const Type& type, const Product& call, int block, const float* numbers) {
  for (int row = 0; row < call.num_rows; ++row, numbers += kBlock)
    write_row(type, call, row, block, numbers);
}

// Computes in float32 block by block: `add_up(block, sums)` adds the products to the sums.
template <class AddUp>
void multiply_float32_blocks(
    const Type& type, const Product& call, int num_threads, AddUp add_up) {
  const Matrix& matrix = call.matrix;
  for_each_block(matrix, num_threads, [&](int block) {
    const int first = block * kBlock;
    float* outputs = reinterpret_cast<float*>(call.outputs) + first;
    Sums<float> sums{outputs, matrix.num_outputs, matrix.biases + first};
    Numbers apart;  // sums that are rounded, or of a block with more outputs than the matrix has
    if (&type != &kTypes[kFloat32] || first + kBlock > matrix.num_outputs) {
      apart.resize(size_t(call.num_rows) * kBlock);
      sums.to = apart.data();
      sums.stride = kBlock;
    }
    add_up(block, sums);
    if (!apart.empty()) write(type, call, block, apart.data());
  });
}

// Rows scaled so that the largest magnitude of each becomes 127, plus 128.
class RoundedRows {
 public:
  // Rounds `count` numbers, padded with zeros to a multiple of kPadding; returns the scale.
  using Round = float (*)(const float* numbers, int count, uint8_t* to);
  static constexpr int kPadding = 16;

  RoundedRows(const Type& type, const Product& call, Round round)
      : num_steps(divided_up(call.matrix.num_inputs, 4)),
        scales_(call.num_rows), bytes_(size_t(call.num_rows) * num_steps * 4, 128) {
    const int count = call.matrix.num_inputs;
    Numbers row(divided_up(count, kPadding) * kPadding);
    for (int i = 0; i < call.num_rows; ++i) {
      type.widen(at(call.inputs, type, int64_t{i} * count), row.data(), count);
      scales_[i] = round(row.data(), count, &bytes_[size_t(i) * num_steps * 4]);
    }
  }

  const int32_t* data() const { return reinterpret_cast<const int32_t*>(bytes_.data()); }
  float scale(int row) const { return scales_[row]; }

  const int num_steps;

 private:
  std::vector<float> scales_;
  std::vector<uint8_t> bytes_;
};

// Computes rounded rows block by block: `add_up(block, sums)` adds the products to int32 sums, and
// `unround(sums, scale, scales, biases, outputs)` converts a row's sums to outputs.
template <class AddUp, class Unround>
void multiply_int8_blocks(
    const Type& type, const Product& call, const RoundedRows& inputs, int num_threads,
    AddUp add_up, Unround unround) {
  const Matrix& matrix = call.matrix;
  for_each_block(matrix, num_threads, [&](int block) {
    const int first = block * kBlock;
    thread_local std::vector<int32_t> sums;
    sums.resize(std::max(sums.size(), size_t(call.num_rows) * kBlock));
    add_up(block, Sums<int32_t>{sums.data(), kBlock, matrix.offsets + first});
    for (int row = 0; row < call.num_rows; ++row) {
      float outputs[kBlock];
      unround(
          &sums[size_t(row) * kBlock], inputs.scale(row), matrix.scales + first,
          matrix.biases + first, outputs);
      write_row(type, call, row, block, outputs);
    }
  });
}

// Computes in float32, or with rows rounded to 8 bits, with weights of any type.
//
// Kernels have kinds Float32, Float32WithBfloat16, Float32WithFloat16 and Int8 (with kIsOffset: whether
// it multiplies rows with their offset of 128, which the matrix's offsets then correct), for which
// `add_up<Kind>(call, block, inputs, num_steps, sums)` sums all steps of a call's rows with a block
// of outputs, and the functions `round_row` and `unround` used above.
template <class Kernels>
void multiply_by(const Type& type, const Product& call, int num_threads) {
  const Matrix& matrix = call.matrix;
  if (matrix.scales) {
    const RoundedRows inputs(type, call, Kernels::round_row);
    return multiply_int8_blocks(
        type, call, inputs, num_threads,
        [&](int block, Sums<int32_t> sums) {
          if (!Kernels::Int8::kIsOffset) sums.first = kNoOffsets;
          Kernels::template add_up<typename Kernels::Int8>(
              call, block, inputs.data(), inputs.num_steps, sums);
        },
        Kernels::unround);
  }
  thread_local Numbers room;
  const float* inputs = widened(type, call.inputs, call.num_rows * matrix.num_inputs, room);
  const auto multiply = [&](auto kind) {
    multiply_float32_blocks(type, call, num_threads, [&](int block, Sums<float> sums) {
      Kernels::template add_up<decltype(kind)>(
          call, block, inputs, matrix.num_inputs, sums);
    });
  };
  switch (matrix.weight_type) {
    case kFloat32: return multiply(typename Kernels::Float32());
    case kBfloat16: return multiply(typename Kernels::Float32WithBfloat16());
    case kFloat16: return multiply(typename Kernels::Float32WithFloat16());
  }
}

}  // namespace kernels
