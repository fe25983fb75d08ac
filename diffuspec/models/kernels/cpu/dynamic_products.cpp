#include "dynamic_products.h"

#include <algorithm>
#include <cstring>

#include "block_products.h"
#include "quantized_groups.h"
#include "registers.h"

#if defined(__x86_64__)
#define HAS_LEVELS 1
#include <immintrin.h>
#else
#define HAS_LEVELS 0
#endif
#if HAS_DOTS
#include <arm_neon.h>
#endif

namespace kernels {
namespace {

constexpr int kRun = 32;  // inputs that share a scale of a row, if it divides a group
constexpr int kMaxRun = 256;
// rows whose sums with a block of outputs fit into the first-level cache
constexpr int kRowsAtATime = 96;

typedef int8_t Bytes __attribute__((vector_size(kLanes)));

// Quantises the runs of a row; for `parts_words` see QuantizedRows::words.
INLINE void quantize(const float* inputs, int num_inputs, int run, bool parts_words, int8_t* to,
                     float* scales, int32_t* sums) {
  alignas(64) float padding[kMaxRun + kLanes] = {};
  for (; num_inputs > 0; num_inputs -= run, inputs += run, to += run) {
    const float* from = inputs;
    if (run % kLanes) from = std::copy_n(inputs, run, padding) - run;
    // compared as bits, which have the same order as the numbers; NaN is the largest
    Ints largest[1] = {};
    for (int i = 0; i < run; i += kLanes)
      largest[0] = larger(read<Ints>(from + i) & 0x7fffffff, largest[0]);
    const int32_t bits = largest_of(largest);
    const float magnitude = read<float>(&bits);
    const float factor = magnitude > 0.f ? 127.f / magnitude : 0.f;
    const Floats roundings = Floats{} + kRounding;
    Ints sum[1] = {};
    for (int i = 0; i < run; i += kLanes) {
      const Floats moved = load(from + i) * factor + roundings;  // ties go to even
      const Ints whole = read<Ints>(&moved) - read<Ints>(&roundings);
      sum[0] += whole;
      Bytes bytes = __builtin_convertvector(whole, Bytes);
      if (parts_words)
        bytes = picked<0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15>(bytes, bytes);
      if (i + kLanes <= run) write(to + i, bytes);
      else std::memcpy(to + i, &bytes, run - i);
    }
    *scales++ = magnitude / 127.f + (magnitude - magnitude);  // NaN if a number is not finite
    *sums++ = sum_of(sum);
  }
}

#if HAS_LEVELS
#define ON_LEVEL __attribute__((target("arch=x86-64-v4,avx512vnni"), noinline))
#define ON_LEVEL_INLINE __attribute__((target("arch=x86-64-v4,avx512vnni"), always_inline)) inline
namespace wide {
constexpr int kWidth = 16, kRows = 6, kVectors = 4;
constexpr bool kFlips = true;

template <int kBits>
ON_LEVEL_INLINE Ints add(Ints sums, Ints weights, int32_t numbers) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(numbers));
}

#include "dynamic_kernels.h"
}  // namespace wide
#undef ON_LEVEL
#undef ON_LEVEL_INLINE

#define ON_LEVEL __attribute__((target("arch=x86-64-v3"), noinline))
#define ON_LEVEL_INLINE __attribute__((target("arch=x86-64-v3"), always_inline)) inline
namespace narrow {
constexpr int kWidth = 8, kRows = 2, kVectors = 4;
constexpr bool kFlips = true;

template <int kBits>
ON_LEVEL_INLINE VectorOf<8>::Ints add(
    VectorOf<8>::Ints sums, VectorOf<8>::Ints weights, int32_t numbers) {
  const __m256i four = (__m256i)weights, all = _mm256_set1_epi32(numbers);
  if constexpr (kBits == 4) {  // sums of two products fit into 16 bits
    const __m256i pairs = _mm256_maddubs_epi16(four, all);
    return sums + (VectorOf<8>::Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8);
  const __m256i odd = _mm256_srai_epi16(all, 8);
  const __m256i even_weights = _mm256_and_si256(four, _mm256_set1_epi16(0xff));
  const __m256i odd_weights = _mm256_srli_epi16(four, 8);
  return sums + (VectorOf<8>::Ints)_mm256_madd_epi16(even, even_weights) +
         (VectorOf<8>::Ints)_mm256_madd_epi16(odd, odd_weights);
}

#include "dynamic_kernels.h"
}  // namespace narrow
#undef ON_LEVEL
#undef ON_LEVEL_INLINE
#endif

#if HAS_DOTS
#define ON_LEVEL ON_DOTS
#define ON_LEVEL_INLINE ON_DOTS inline __attribute__((always_inline))
namespace dots {
constexpr int kWidth = 4, kRows = 4, kVectors = 4;
constexpr bool kFlips = false;

template <int kBits>
ON_LEVEL_INLINE VectorOf<4>::Ints add(
    VectorOf<4>::Ints sums, VectorOf<4>::Ints weights, int32_t numbers) {
  return (VectorOf<4>::Ints)vdotq_s32(
      (int32x4_t)sums, (int8x16_t)weights, (int8x16_t)vdupq_n_s32(numbers));
}

#include "dynamic_kernels.h"
}  // namespace dots
#undef ON_LEVEL
#undef ON_LEVEL_INLINE
#endif

#define ON_LEVEL
#define ON_LEVEL_INLINE INLINE
namespace other {
constexpr int kWidth = 4, kRows = 2, kVectors = 4;
constexpr bool kFlips = true;

template <int kBits>
INLINE VectorOf<4>::Ints add(VectorOf<4>::Ints sums, VectorOf<4>::Ints weights, int32_t numbers) {
#pragma GCC unroll 4
  for (int i = 0; i < 32; i += 8) sums += (weights >> i & 255) * int32_t(int8_t(numbers >> i));
  return sums;
}

#include "dynamic_kernels.h"
}  // namespace other

}  // namespace

int QuantizedRows::run_of(const Part& part) { return part.group % kRun == 0 ? kRun : part.group; }

QuantizedRows::QuantizedRows(const Part& part, const float* inputs, const Product& call)
    : run(run_of(part)),
      bits_(part.bits),
      num_words_(call.matrix.num_inputs / 4),
      num_runs_(call.matrix.num_inputs / run),
      words_(new int32_t[call.num_rows * num_words_]),
      sums_(new int32_t[call.num_rows * num_runs_]),
      scales_(new float[call.num_rows * num_runs_]) {
  const int num_inputs = call.matrix.num_inputs;
  on_level([&]() ALWAYS_INLINE {
    for (int row = 0; row < call.num_rows; ++row)
      quantize(inputs + int64_t{row} * num_inputs, num_inputs, run, part.bits == 4,
               reinterpret_cast<int8_t*>(&words_[row * num_words_]), &scales_[row * num_runs_],
               &sums_[row * num_runs_]);
  });
}

void QuantizedRows::add(const Part& part, int block, const Product& call, float* sums) const {
#if HAS_LEVELS
  const auto add_part = fitting(wide::add_part, narrow::add_part, other::add_part);
#elif HAS_DOTS
  const auto add_part = level() >= kDots ? dots::add_part : other::add_part;
#else
  const auto add_part = other::add_part;
#endif
  add_part(part, block, *this, call, sums);
}

}  // namespace kernels
