#include "bfloat16_products.h"

#include "block_products.h"
#include "level.h"
#include "quantized_groups.h"
#include "registers.h"

#if defined(__x86_64__)
#define HAS_LEVEL 1
#include <immintrin.h>
#define ON_LEVEL __attribute__((target("arch=x86-64-v4,avx512bf16"), noinline))
#define ON_LEVEL_INLINE __attribute__((target("arch=x86-64-v4,avx512bf16"), always_inline)) inline
#else
#define HAS_LEVEL 0
#endif

namespace kernels {

#if HAS_LEVEL
namespace {

constexpr int kWidth = 16;
constexpr int kMaxGroup = 256;
constexpr int kFusedRows = 12;  // the most rows for which weights are unpacked into registers only
constexpr int kRows = 6;        // rows whose sums with a block of outputs fit into registers

// Weights as they are stored: a word has kPairs pairs of inputs.
template <int kBits>
struct Packed {
  static constexpr int kPairs = 16 / kBits;
  static constexpr float kFactor = kBits == 8 ? 0x1p-24f : 1.f;  // of the numbers that are read

  ON_LEVEL_INLINE Packed(const int32_t* from, int zero) : from(from) {
    const VectorOf<kWidth>::Ints all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const __m512i numbers = _mm512_srli_epi32(float32((__m512i)(all - zero)), 16);
    table = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(numbers));
  }

  // Reads a word for 16 outputs: inputs (0, 4), (1, 5), (2, 6) and (3, 7) of 4 bits, or (0, 1) and
  // (2, 3) of 8 bits.
  ON_LEVEL_INLINE void read(int output, __m512i (&pairs)[kPairs]) const {
    const __m512i words = _mm512_loadu_si512(from + output);
    if constexpr (kBits == 4) {  // looked up by five bits; the highest is ignored
#pragma GCC unroll 4
      for (int k = 0; k < kPairs; ++k)
        pairs[k] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 4 * k), table);
    } else {  // converted from the highest byte
      pairs[0] = pair(_mm512_slli_epi32(words, 24), highest(_mm512_slli_epi32(words, 16)));
      pairs[1] = pair(highest(_mm512_slli_epi32(words, 8)), highest(words));
    }
  }

  ON_LEVEL_INLINE void move() { from += kBlock; }

  ON_LEVEL_INLINE static __m512i highest(__m512i words) {
    return _mm512_and_si512(words, _mm512_set1_epi32(0xff000000));
  }

  ON_LEVEL_INLINE static __m512i float32(__m512i whole) {
    return (__m512i)_mm512_cvtepi32_ps(whole);
  }

  ON_LEVEL_INLINE static __m512i pair(__m512i first, __m512i second) {
    return _mm512_mask_blend_epi16(
        0xaaaaaaaa, _mm512_srli_epi32(float32(first), 16), float32(second));
  }

  const int32_t* from;
  __m512i table;
};

// Weights that have been unpacked.
template <int kBits>
struct Unpacked {
  static constexpr int kPairs = Packed<kBits>::kPairs;

  ON_LEVEL_INLINE void read(int output, __m512i (&pairs)[kPairs]) const {
#pragma GCC unroll 4
    for (int k = 0; k < kPairs; ++k) pairs[k] = _mm512_loadu_si512(from + k * kBlock + output);
  }

  ON_LEVEL_INLINE void move() { from += kPairs * kBlock; }

  const int32_t* from;
};

// A group for all rows, which are `stride` apart.
struct Group {
  int num_words;
  const int32_t* pairs;  // of the first row
  int64_t stride;
  const float* scales;
  const float* offsets;  // null: none
  const float* totals;   // sums of the group's numbers in each row
  int64_t total_stride;
};

// Adds a group's scaled products, and the products of offsets, to sums.
template <bool kHasOffsets, int N, int V>
ON_LEVEL_INLINE void scale(
    const Group& group, const __m512 (&found)[N][V], int row, int output, float* sums) {
  __m512 scales[V], offsets[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    scales[v] = _mm512_loadu_ps(group.scales + output + v * kWidth);
    if constexpr (kHasOffsets) offsets[v] = _mm512_loadu_ps(group.offsets + output + v * kWidth);
  }
  sums += int64_t{row} * kBlock + output;
  const float* totals = group.totals + row * group.total_stride;
#pragma GCC unroll 12
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* to = sums + i * kBlock + v * kWidth;
      __m512 sum = _mm512_loadu_ps(to);
      if constexpr (kHasOffsets)
        sum = _mm512_fmadd_ps(_mm512_set1_ps(totals[i * group.total_stride]), offsets[v], sum);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(found[i][v], scales[v], sum));
    }
}

// Adds a group's products to the sums of N rows with V vectors of outputs.
template <int N, int V, class Weights>
ON_LEVEL_INLINE void add_group(
    const Group& group, Weights weights, int row, int output, Ahead& ahead, float* sums) {
  const int32_t* numbers = group.pairs + row * group.stride;
  __m512 found[N][V] = {};
  Ahead rest = ahead;
  for (int word = 0; word < group.num_words; ++word, weights.move()) {
    rest.fetch();
    __m512i pairs[V][Weights::kPairs];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) weights.read(output + v * kWidth, pairs[v]);
#pragma GCC unroll 4
    for (int k = 0; k < Weights::kPairs; ++k, ++numbers)
#pragma GCC unroll 12
      for (int i = 0; i < N; ++i) {
        const __m512i number = _mm512_set1_epi32(numbers[i * group.stride]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
          found[i][v] = _mm512_dpbf16_ps(found[i][v], (__m512bh)number, (__m512bh)pairs[v][k]);
      }
  }
  ahead = rest;
  if (group.offsets) scale<true>(group, found, row, output, sums);
  else scale<false>(group, found, row, output, sums);
}

// The same for at most N rows and a whole block of outputs.
template <int N, int V, class Weights>
ON_LEVEL_INLINE void add_few_rows(
    const Group& group, const Weights& weights, int row, int num_rows, Ahead& ahead, float* sums) {
  if (num_rows == N) {
    for (int output = 0; output < kBlock; output += V * kWidth)
      add_group<N, V>(group, weights, row, output, ahead, sums);
  } else if constexpr (N > 1) {
    add_few_rows<N - 1, N == 2 ? 4 : V>(group, weights, row, num_rows, ahead, sums);
  }
}

// The same for any number of rows.
template <int kBits>
ON_LEVEL_INLINE void add_many_rows(
    const Group& group, Packed<kBits> weights, int num_rows, Ahead& ahead, float* sums) {
  constexpr int kPairs = Packed<kBits>::kPairs;
  alignas(64) int32_t unpacked[kMaxGroup / 2 * kBlock];
  int32_t* to = unpacked;
  for (int word = 0; word < group.num_words; ++word, weights.move(), to += kPairs * kBlock) {
    ahead.fetch();
#pragma GCC unroll 4
    for (int output = 0; output < kBlock; output += kWidth) {
      __m512i pairs[kPairs];
      weights.read(output, pairs);
#pragma GCC unroll 4
      for (int k = 0; k < kPairs; ++k) _mm512_store_si512(to + k * kBlock + output, pairs[k]);
    }
  }
  Ahead none;
  for (int row = 0, size; row < num_rows; row += size) {
    size = divided_up(num_rows - row, divided_up(num_rows - row, kRows));
    add_few_rows<kRows, 4>(group, Unpacked<kBits>{unpacked}, row, size, none, sums);
  }
}

// Whether a part's weights have offsets, which sums of rows multiply.
bool has_offsets(const Part& part) {
  return part.super_offsets || part.zeros || (part.bits == 8 && part.zero);
}

class Bfloat16Rows : public PartRows {
 public:
  Bfloat16Rows(const Part& part, const Product& call)
      : bits_(part.bits),
        group_(part.group),
        num_groups_(call.matrix.num_inputs / group_),
        num_pairs_(call.matrix.num_inputs / 2),
        pairs_(new int32_t[call.num_rows * num_pairs_]),
        totals_(has_offsets(part) ? call.num_rows * num_groups_ : 0) {
    on_level([&]() ALWAYS_INLINE {
      const char* from = call.inputs;
      for (int64_t i = 0; i < call.num_rows * num_pairs_; i += 4, from += sizeof(Shorts)) {
        const Shorts eight = read<Shorts>(from);
        const Shorts moved = picked<0, 4, 1, 5, 2, 6, 3, 7>(eight, eight);
        write(&pairs_[i], bits_ == 4 ? moved : eight);
      }
      from = call.inputs;
      for (float& total : totals_) {
        Half parts[2] = {};
        for (int i = 0; i < group_; i += 8, from += sizeof(Shorts)) {
          const Whole bits = __builtin_convertvector(read<Shorts>(from), Whole) << 16;
          parts[i / 8 % 2] += read<Half>(&bits);
        }
        total = sum_of(parts);
      }
    });
  }

  bool fits(const Part& part) const override {
    return part.bits == bits_ && part.group == group_ && has_offsets(part) == !totals_.empty();
  }

  void add(const Part& part, int block, const Product& call, float* sums) const override {
    if (part.bits == 4) add_all<4>(part, block, call, sums);
    else add_all<8>(part, block, call, sums);
  }

 private:
  typedef int16_t Shorts __attribute__((vector_size(16)));
  using Half = VectorOf<8>::Floats;
  using Whole = VectorOf<8>::Ints;

  template <int kBits>
  ON_LEVEL void add_all(const Part& part, int block, const Product& call, float* sums) const {
    Groups groups(part, call.matrix.num_inputs, block);
    const bool is_fused = call.num_rows <= kFusedRows;
    float scales[kBlock];
    Group group{group_ * kBits / 32, pairs_.get(), num_pairs_, nullptr,
                nullptr, totals_.data(), num_groups_};
    for (int i = 0; i < groups.count(); ++i, group.pairs += group_ / 2, ++group.totals) {
      groups.read_next(i);
      if (has_offsets(part)) {
        groups.complete_offsets();
        group.offsets = groups.offsets;
      }
      group.scales = groups.scales;
      if constexpr (kBits == 8) {
        for (int k = 0; k < kBlock; ++k) scales[k] = groups.scales[k] * Packed<kBits>::kFactor;
        group.scales = scales;
      }
      Ahead ahead = groups.ahead(i, call.fetches, is_fused && call.num_rows > 1 ? 2 : 1);
      const Packed<kBits> weights(groups.weights(i), has_offsets(part) ? 0 : part.zero);
      if (is_fused) add_few_rows<kFusedRows, 2>(group, weights, 0, call.num_rows, ahead, sums);
      else add_many_rows(group, weights, call.num_rows, ahead, sums);
    }
  }

  const int bits_, group_;
  const int64_t num_groups_, num_pairs_;
  const std::unique_ptr<int32_t[]> pairs_;
  Numbers totals_;  // empty if no weights have offsets
};

}  // namespace
#endif

std::shared_ptr<const PartRows> bfloat16_rows(
    [[maybe_unused]] const Part& part, [[maybe_unused]] const Product& call) {
#if HAS_LEVEL
  return std::make_shared<Bfloat16Rows>(part, call);
#else
  return nullptr;
#endif
}

}  // namespace kernels
