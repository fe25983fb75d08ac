#include "quantized_products.h"

#include <memory>
#include <utility>
#include <vector>

#include "bfloat16_products.h"
#include "block_products.h"
#include "dynamic_products.h"
#include "quantized_groups.h"
#include "small_products.h"

namespace kernels {
namespace {

constexpr int kMaxGroup = 256;

template <class Registers>
struct Vectors : Registers {
  static constexpr int kCount = Registers::kNumbers;
  using Numbers = typename VectorOf<kCount>::Floats;
  using Whole = typename VectorOf<kCount>::Ints;
};

// Returns one of the numbers in some words, which hold 32 / kBits of them, the first in the lowest
// bits.
template <class V, int kBits>
INLINE typename V::Numbers number_of(typename V::Whole words, int place) {
#if !defined(__clang__)
  if constexpr (kBits == 4 && V::kCount == 16) {  // a table look-up that uses only the lowest bits
    constexpr typename V::Numbers kAll = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return __builtin_shuffle(kAll, words >> kBits * place);
  }
#endif
  const typename V::Whole number = kBits == 4 ? words >> kBits * place & 15
                                              : words << (32 - kBits * (place + 1)) >> (32 - kBits);
  return __builtin_convertvector(number, typename V::Numbers);
}

// Calls `use(input, weights)` for a group's inputs and kVectors vectors of outputs, from `first`
// on.
template <class V, int kBits, int kVectors, class Use>
INLINE void for_each_weight(const Groups& groups, int group, int first, Ahead& ahead, Use use) {
  using Numbers = typename V::Numbers;
  Numbers scale[kVectors], offset[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    scale[v] = read<Numbers>(groups.scales + first + v * V::kCount);
    offset[v] = read<Numbers>(groups.offsets + first + v * V::kCount);
  }
  constexpr int kInputs = 32 / kBits;  // numbers in a word
  const int32_t* from = groups.weights(group) + first;
  Ahead rest = ahead;
  for (int i = 0; i < groups.size(); i += kInputs, from += kBlock) {
    rest.fetch();
    typename V::Whole words[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) words[v] = read<typename V::Whole>(from + v * V::kCount);
#pragma GCC unroll 8
    for (int k = 0; k < kInputs; ++k) {
      Numbers weights[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        weights[v] = number_of<V, kBits>(words[v], k) * scale[v] + offset[v];
      use(i + k, weights);
    }
  }
  ahead = rest;
}

// Adds a group's products to the sums of N rows, without storing unpacked weights.
template <class V, int kBits, int N>
INLINE void add_group(
    const Groups& groups, int group, Ahead& ahead, const float* inputs, int64_t stride,
    float* sums) {
  using Numbers = typename V::Numbers;
  constexpr int kVectors = V::fused_vectors(N), kPart = kVectors * V::kCount;
  for (int first = 0; first < kBlock; first += kPart) {
    Numbers found[N][kVectors];
#pragma GCC unroll 12
    for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        found[i][v] = read<Numbers>(sums + i * kBlock + first + v * V::kCount);
    const auto add = [&](int input, const Numbers(&weights)[kVectors])
        __attribute__((always_inline)) {
#pragma GCC unroll 12
      for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          found[i][v] = inputs[i * stride + input] * weights[v] + found[i][v];
    };
    for_each_weight<V, kBits, kVectors>(groups, group, first, ahead, add);
#pragma GCC unroll 12
    for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        write(sums + i * kBlock + first + v * V::kCount, found[i][v]);
  }
}

// Writes a group's unpacked weights, [group, kBlock].
template <class V, int kBits>
INLINE void widen(const Groups& groups, int group, Ahead& ahead, float* to) {
  constexpr int kVectors = 4, kPart = kVectors * V::kCount;
  for (int first = 0; first < kBlock; first += kPart) {
    const auto keep = [&](int input, const typename V::Numbers(&weights)[kVectors])
        __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        write(to + input * kBlock + first + v * V::kCount, weights[v]);
    };
    for_each_weight<V, kBits, kVectors>(groups, group, first, ahead, keep);
  }
}

// Sums all inputs of N rows with a block of outputs; sums are [N, kBlock].
template <class Registers, int kBits, int N>
INLINE void add_few(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  using V = Vectors<Registers>;
  Groups groups(part, call.matrix.num_inputs, block);
  constexpr int kParts = kBlock / V::fused_vectors(N) / V::kCount;
  for (int group = 0; group < groups.count(); ++group, inputs += part.group) {
    groups.read_next(group);
    groups.complete_offsets();
    Ahead ahead = groups.ahead(group, call.fetches, kParts);
    add_group<V, kBits, N>(groups, group, ahead, inputs, call.matrix.num_inputs, sums);
  }
}

// The same for any number of rows.
template <class Registers, int kBits>
INLINE void add_many(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  using V = Vectors<Registers>;
  const int num_inputs = call.matrix.num_inputs;
  Groups groups(part, num_inputs, block);
  alignas(64) float wide[kMaxGroup * kBlock];
  SmallProduct product{inputs, num_inputs, wide, kLanes, kBlock, part.group, sums, kBlock, false};
  for (int group = 0; group < groups.count(); ++group, product.rows += part.group) {
    groups.read_next(group);
    groups.complete_offsets();
    Ahead ahead = groups.ahead(group, call.fetches, kBlock / 4 / V::kCount);
    widen<V, kBits>(groups, group, ahead, wide);
    multiply_rows<Registers>(product, call.num_rows, kBlock / kLanes);
  }
}

template <class Registers, int kBits, int N = Registers::kFusedRows>
INLINE void add_all(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  if (call.num_rows > N) return add_many<Registers, kBits>(part, block, inputs, call, sums);
  if (call.num_rows == N) return add_few<Registers, kBits, N>(part, block, inputs, call, sums);
  if constexpr (N > 1) add_all<Registers, kBits, N - 1>(part, block, inputs, call, sums);
}

template <class Registers>
INLINE void add_part(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  if (part.bits == 4) add_all<Registers, 4>(part, block, inputs, call, sums);
  else add_all<Registers, 8>(part, block, inputs, call, sums);
}

ON_WIDE_REGISTERS void add_wide(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  add_part<WideRegisters>(part, block, inputs, call, sums);
}

ON_NARROW_REGISTERS void add_narrow(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  add_part<NarrowRegisters>(part, block, inputs, call, sums);
}

void add_other(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  add_part<OtherRegisters>(part, block, inputs, call, sums);
}

// Computes a block of a part's outputs.
void compute(const Type& type, const Product& call, const Part& part, int block,
             const float* inputs, const PartRows* rows) {
  const Matrix& matrix = call.matrix;
  const int first = part.first_output + block * kBlock;
  const int count = std::min(kBlock, part.num_outputs - block * kBlock);
  thread_local Numbers sums;
  sums.resize(std::max(sums.size(), size_t(call.num_rows) * kBlock));
  for (int row = 0; row < call.num_rows; ++row)
    std::copy_n(matrix.biases + first, kBlock, &sums[size_t(row) * kBlock]);
  const auto add = fitting(add_wide, add_narrow, add_other);
  if (rows) rows->add(part, block, call, sums.data());
  else add(part, block, inputs, call, sums.data());
  for (int row = 0; row < call.num_rows; ++row)
    type.narrow(&sums[size_t(row) * kBlock],
                at(call.outputs, type, int64_t{row} * matrix.num_outputs + first), count);
}

// Returns rows in the form that a part reads, or null for float32, in which `inputs` are then.
std::shared_ptr<const PartRows> rows_of(
    const Part& part, const float* inputs, const Product& call) {
  if (part.quantizes_rows) return std::make_shared<QuantizedRows>(part, inputs, call);
  return inputs ? nullptr : bfloat16_rows(part, call);
}

}  // namespace

void multiply_quantized(const Type& type, const Product& call, int num_threads) {
  const Matrix& matrix = call.matrix;
  thread_local Numbers room;
  const bool in_bfloat16 = &type == &kTypes[kBfloat16] && has_bfloat16_vectors() &&
                           !matrix.parts[0].quantizes_rows;
  const float* inputs =
      in_bfloat16 ? nullptr : widened(type, call.inputs, call.num_rows * matrix.num_inputs, room);
  std::vector<std::shared_ptr<const PartRows>> rows(matrix.num_parts);
  std::vector<std::pair<int, int>> blocks;  // the part of each block, and its index there
  for (int i = 0; i < matrix.num_parts; ++i) {
    const Part& part = matrix.parts[i];
    rows[i] = i && rows[i - 1] && rows[i - 1]->fits(part) ? rows[i - 1]
                                                          : rows_of(part, inputs, call);
    const int num_blocks = divided_up(part.num_outputs, kBlock);
    for (int block = 0; block < num_blocks; ++block) blocks.emplace_back(i, block);
  }
  num_threads = useful_threads(matrix, num_threads);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [number, block] = blocks[i];
    compute(type, call, matrix.parts[number], block, inputs, rows[number].get());
  }
}

}  // namespace kernels
