#include "quantized_products.h"

#include "block_products.h"
#include "fetching.h"
#include "small_products.h"

namespace kernels {
namespace {

constexpr int kVectors = 4;    // of outputs that are computed together
constexpr int kMaxGroup = 256;
constexpr int kAhead = 8192;  // bytes between a weight and what is fetched before it is needed

template <class Registers>
struct Vectors {
  static constexpr int kCount = Registers::kNumbers;
  using Numbers = typename VectorOf<kCount>::Floats;
  using Whole = typename VectorOf<kCount>::Ints;
};

// A block of a part's outputs, group after group.
class Groups {
 public:
  Groups(const Part& part, int num_inputs, int block)
      : part_(part),
        num_(num_inputs / part.group),
        words_(part.group * part.bits / 32 * kBlock),
        place_(int64_t{block} * num_) {}

  int count() const { return num_; }
  const int32_t* weights(int group) const { return part_.weights + (place_ + group) * words_; }

  // Reads the scales and offsets of the next group.
  INLINE void read_next(int group) {
    if (group % part_.ratio == 0) {
      const Type& type = kTypes[part_.scale_type];
      const int64_t place = (place_ + group) / part_.ratio * kBlock * type.size;
      type.widen(part_.supers + place, supers_, kBlock);
      if (part_.super_offsets) type.widen(part_.super_offsets + place, super_offsets_, kBlock);
    }
    const int64_t place = (place_ + group) * kBlock;
    for (int i = 0; i < kBlock; ++i)
      scales[i] = part_.codes ? supers_[i] * part_.codes[place + i] : supers_[i];
    if (!part_.super_offsets) {
      for (int i = 0; i < kBlock; ++i)
        offsets[i] = scales[i] * -(part_.zeros ? part_.zeros[place + i] : part_.zero);
      return;
    }
    for (int i = 0; i < kBlock; ++i)
      offsets[i] = part_.offset_codes ? super_offsets_[i] * part_.offset_codes[place + i]
                                      : super_offsets_[i];
  }

  alignas(64) float scales[kBlock];
  alignas(64) float offsets[kBlock];

 private:
  const Part& part_;
  const int num_;
  const int64_t words_, place_;
  alignas(64) float supers_[kBlock];
  alignas(64) float super_offsets_[kBlock];
};

// Calls `use(input, vector, weights)` for a group's inputs and some vectors of outputs.
template <class V, int kBits, class Use>
INLINE void for_each_weight(
    const int32_t* weights, int group, bool fetches, const float* scales, const float* offsets,
    Use use) {
  typename V::Numbers scale[kVectors], offset[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    scale[v] = read<typename V::Numbers>(scales + v * V::kCount);
    offset[v] = read<typename V::Numbers>(offsets + v * V::kCount);
  }
  constexpr int kInputs = 32 / kBits;  // of a word
  for (int i = 0; i < group; i += kInputs, weights += kBlock) {
    if (fetches)
#pragma GCC unroll 2
      for (int byte = 0; byte < kVectors * V::kCount * 4; byte += kFetchDistance)
        __builtin_prefetch(reinterpret_cast<const char*>(weights) + kAhead + byte, 0, 2);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto words = read<typename V::Whole>(weights + v * V::kCount);
#pragma GCC unroll 8
      for (int k = 0; k < kInputs; ++k) {
        const typename V::Whole number =
            kBits == 4 ? words >> kBits * k & 15 : words << (32 - kBits * (k + 1)) >> (32 - kBits);
        use(i + k, v, __builtin_convertvector(number, typename V::Numbers) * scale[v] + offset[v]);
      }
    }
  }
}

// Adds a group's products to the sums of one row, without writing weights.
template <class V, int kBits>
INLINE void add_to_row(const Groups& groups, int group, const Part& part, bool fetches,
                       const float* inputs, float* sums) {
  constexpr int kPart = kVectors * V::kCount;
  for (int first = 0; first < kBlock; first += kPart) {
    typename V::Numbers found[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      found[v] = read<typename V::Numbers>(sums + first + v * V::kCount);
    for_each_weight<V, kBits>(
        groups.weights(group) + first, part.group, fetches, groups.scales + first,
        groups.offsets + first,
        [&](int i, int v, typename V::Numbers weight) __attribute__((always_inline)) {
          found[v] = inputs[i] * weight + found[v];
        });
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) write(sums + first + v * V::kCount, found[v]);
  }
}

// Writes a group's weights, [group, kBlock].
template <class V, int kBits>
INLINE void widen(const Groups& groups, int group, const Part& part, bool fetches, float* to) {
  constexpr int kPart = kVectors * V::kCount;
  for (int first = 0; first < kBlock; first += kPart)
    for_each_weight<V, kBits>(
        groups.weights(group) + first, part.group, fetches, groups.scales + first,
        groups.offsets + first,
        [&](int i, int v, typename V::Numbers weight) __attribute__((always_inline)) {
          write(to + i * kBlock + first + v * V::kCount, weight);
        });
}

// Adds up all inputs of rows with a block of outputs; sums are [num_rows, kBlock].
template <class Registers, int kBits>
INLINE void add_all(
    const Part& part, int block, const float* inputs, const Product& call, float* sums) {
  using V = Vectors<Registers>;
  const int num_inputs = call.matrix.num_inputs;
  Groups groups(part, num_inputs, block);
  alignas(64) float wide[kMaxGroup * kBlock];
  SmallProduct product{inputs, num_inputs, wide, kLanes, kBlock, part.group, sums, kBlock, false};
  for (int group = 0; group < groups.count(); ++group, product.rows += part.group) {
    groups.read_next(group);
    if (call.num_rows == 1) {
      add_to_row<V, kBits>(groups, group, part, call.fetches, product.rows, sums);
      continue;
    }
    widen<V, kBits>(groups, group, part, call.fetches, wide);
    multiply_rows<Registers>(product, call.num_rows, kBlock / kLanes);
  }
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
             const float* inputs) {
  const Matrix& matrix = call.matrix;
  const int first = part.first_output + block * kBlock;
  const int count = std::min(kBlock, part.num_outputs - block * kBlock);
  thread_local Numbers sums;
  sums.resize(std::max(sums.size(), size_t(call.num_rows) * kBlock));
  for (int row = 0; row < call.num_rows; ++row)
    std::copy_n(matrix.biases + first, kBlock, &sums[size_t(row) * kBlock]);
  const auto add = fitting(add_wide, add_narrow, add_other);
  add(part, block, inputs, call, sums.data());
  for (int row = 0; row < call.num_rows; ++row)
    type.narrow(&sums[size_t(row) * kBlock],
                at(call.outputs, type, int64_t{row} * matrix.num_outputs + first), count);
}

}  // namespace

void multiply_quantized(const Type& type, const Product& call, int num_threads) {
  const Matrix& matrix = call.matrix;
  Numbers room;
  const float* inputs =
      widened(type, call.inputs, call.num_rows * matrix.num_inputs, room);
  const int64_t num_weights = int64_t{matrix.num_inputs} * matrix.num_outputs;
  const int num_working = std::min<int64_t>(num_threads, 1 + num_weights / kWorthAThread);
  for (int i = 0; i < matrix.num_parts; ++i) {
    const Part& part = matrix.parts[i];
    const int num_blocks = divided_up(part.num_outputs, kBlock);
#pragma omp parallel for num_threads(num_working) if (num_working > 1)
    for (int block = 0; block < num_blocks; ++block) compute(type, call, part, block, inputs);
  }
}

}  // namespace kernels
