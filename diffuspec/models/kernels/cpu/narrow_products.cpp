#include "block_products.h"
#include "vector_products.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_NARROW 1
#include <immintrin.h>
#define ON_NARROW __attribute__((target("arch=x86-64-v3")))
#define ON_NARROW_INLINE ON_NARROW inline __attribute__((always_inline))
#else
#define HAS_NARROW 0
#endif

#include <type_traits>

namespace kernels {

#if HAS_NARROW
namespace {

constexpr int kLanes = 8;
constexpr int kPart = 32;        // outputs of a block that are computed together
constexpr int kGroup = 3;        // rows, whose sums with those fill the registers
constexpr int kWorthWidening = 2 * kGroup;  // rows, for which weights are widened once

ON_NARROW_INLINE __m256i load_eight(const int32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

ON_NARROW_INLINE __m128i load_16_bits(const uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// At each step one number of a row is multiplied with one of each output.
struct Float32 {
  using Sum = float;
  using Input = float;
  using Weight = float;
  using Factor = __m256;
  static constexpr int kRows = kGroup;
  ON_NARROW_INLINE static __m256 load(const float* from) { return _mm256_loadu_ps(from); }
  ON_NARROW_INLINE static void store(float* to, __m256 sum) { _mm256_storeu_ps(to, sum); }
  ON_NARROW_INLINE static __m256 load_weights(const Weight* from) { return load(from); }
  ON_NARROW_INLINE static __m256 spread(float number) { return _mm256_set1_ps(number); }
  ON_NARROW_INLINE static __m256 add(__m256 sum, __m256 number, __m256 weights) {
    return _mm256_fmadd_ps(number, weights, sum);
  }
};

// The same with weights that lie in memory in 16 bits, and are widened as they are read.
struct Float32WithBfloat16 : Float32 {
  using Weight = uint16_t;
  ON_NARROW_INLINE static __m256 load_weights(const Weight* from) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bits(from)), 16);
    return _mm256_castsi256_ps(bits);
  }
};

struct Float32WithFloat16 : Float32 {
  using Weight = uint16_t;
  ON_NARROW_INLINE static __m256 load_weights(const Weight* from) {
    return _mm256_cvtph_ps(load_16_bits(from));
  }
};

// Of each four bytes, the even ones and the odd ones as numbers of 16 bits.
struct Pairs {
  __m256i even, odd;
};

// At each step four numbers of a row, each 128 too high, are multiplied with four of each output.
struct Int8 {
  using Sum = int32_t;
  using Input = int32_t;
  using Weight = int32_t;
  using Factor = Pairs;
  static constexpr int kRows = 2;
  ON_NARROW_INLINE static __m256i load(const int32_t* from) { return load_eight(from); }
  ON_NARROW_INLINE static void store(int32_t* to, __m256i sum) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum);
  }
  ON_NARROW_INLINE static Pairs load_weights(const Weight* from) {  // with signs
    const __m256i bytes = load_eight(from);
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
  }
  ON_NARROW_INLINE static Pairs spread(Input numbers) {  // without
    const __m256i bytes = _mm256_set1_epi32(numbers);
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(bytes, 8)};
  }
  ON_NARROW_INLINE static __m256i add(__m256i sum, const Pairs& numbers, const Pairs& weights) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(numbers.even, weights.even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(numbers.odd, weights.odd));
  }
};

// Adds what some steps contribute to the sums of N rows with V vectors of outputs.
template <class Kind, int N, int V>
ON_NARROW_INLINE void add_group(
    const typename Kind::Input* inputs, int64_t stride, const typename Kind::Weight* weights,
    int weight_stride, int num_steps, Sums<typename Kind::Sum> sums) {
  decltype(Kind::load(nullptr)) found[N][V];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      found[i][v] = Kind::load((sums.first ? sums.first : sums.to + i * sums.stride) + v * kLanes);
  for (int step = 0; step < num_steps; ++step, weights += weight_stride) {
    typename Kind::Factor numbers[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) numbers[i] = Kind::spread(inputs[i * stride + step]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const typename Kind::Factor weight = Kind::load_weights(weights + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) found[i][v] = Kind::add(found[i][v], numbers[i], weight);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) Kind::store(sums.to + i * sums.stride + v * kLanes, found[i][v]);
}

// Adds what some steps contribute to the sums of rows with kPart outputs.
template <class Kind>
ON_NARROW void add_rows(
    const typename Kind::Input* inputs, int64_t stride, int num_rows,
    const typename Kind::Weight* weights, int weight_stride, int num_steps,
    Sums<typename Kind::Sum> sums) {
  constexpr int V = kPart / kLanes;
  while (num_rows) {
    const int size = divided_up(num_rows, divided_up(num_rows, Kind::kRows));
    if (size == 3) add_group<Kind, 3, V>(inputs, stride, weights, weight_stride, num_steps, sums);
    if (size == 2) add_group<Kind, 2, V>(inputs, stride, weights, weight_stride, num_steps, sums);
    if (size == 1) add_group<Kind, 1, V>(inputs, stride, weights, weight_stride, num_steps, sums);
    inputs += size * stride;
    sums.to += size * sums.stride;
    num_rows -= size;
  }
}

// Adds what some steps contribute to the sums of four rows with a block of outputs: one group, of half
// as many outputs at a time, reads the weights once.
template <class Kind>
ON_NARROW void add_four_rows(
    const typename Kind::Input* inputs, int64_t stride, const typename Kind::Weight* weights,
    int num_steps, Sums<typename Kind::Sum> sums) {
  constexpr int V = 2;
  for (int part = 0; part < kBlock; part += V * kLanes, weights += V * kLanes) {
    const Sums<typename Kind::Sum> its{
        sums.to + part, sums.stride, sums.first ? sums.first + part : nullptr};
    add_group<Kind, 4, V>(inputs, stride, weights, kBlock, num_steps, its);
  }
}

// Adds what some steps contribute to the sums of one row with a block of outputs: as many chains of
// additions as a processor works on at a time.
template <class Kind>
ON_NARROW void add_row(
    const typename Kind::Input* inputs, const typename Kind::Weight* weights, int num_steps,
    Sums<typename Kind::Sum> sums) {
  add_group<Kind, 1, kBlock / kLanes>(inputs, 0, weights, kBlock, num_steps, sums);
}

// Writes kPart outputs of some steps' weights as float32 numbers, [num_steps, kPart].
template <class Kind>
ON_NARROW void widen_part(const typename Kind::Weight* weights, int num_steps, float* to) {
  for (int step = 0; step < num_steps; ++step, weights += kBlock)
#pragma GCC unroll 4
    for (int v = 0; v < kPart; v += kLanes, to += kLanes)
      _mm256_storeu_ps(to, Kind::load_weights(weights + v));
}

// Adds up all steps of rows, [num_rows, num_steps], with a block of outputs.
template <class Kind>
void add_up(
    const Matrix& matrix, int block, const typename Kind::Input* inputs, int num_rows,
    int num_steps, Sums<typename Kind::Sum> sums) {
  constexpr bool is_widened = std::is_same_v<typename Kind::Weight, uint16_t>;
  const auto* weights = reinterpret_cast<const typename Kind::Weight*>(matrix.weights);
  weights += int64_t{block} * num_steps * kBlock;
  if (num_rows == 1) return add_row<Kind>(inputs, weights, num_steps, sums);
  alignas(32) float wide[is_widened ? kChunk * kPart : 1];
  for (int step = 0; step < num_steps; step += kChunk) {
    const int count = std::min(kChunk, num_steps - step);
    if (is_widened && num_rows == 4) {
      add_four_rows<Kind>(inputs + step, num_steps, weights + step * kBlock, count, sums);
      sums.first = nullptr;
      continue;
    }
    for (int part = 0; part < kBlock; part += kPart) {
      const auto* from = weights + step * kBlock + part;
      const Sums<typename Kind::Sum> its{
          sums.to + part, sums.stride, sums.first ? sums.first + part : nullptr};
      if constexpr (is_widened) {
        if (num_rows >= kWorthWidening) {
          widen_part<Kind>(from, count, wide);
          add_rows<Float32>(inputs + step, num_steps, num_rows, wide, kPart, count, its);
          continue;
        }
      }
      add_rows<Kind>(inputs + step, num_steps, num_rows, from, kBlock, count, its);
    }
    sums.first = nullptr;
  }
}

// See RoundedRows.
ON_NARROW float round_row(const float* numbers, int count, uint8_t* to) {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 largest = _mm256_setzero_ps(), rest = largest;  // numbers are padded with zeros
  for (int i = 0; i < count; i += kLanes) {
    const __m256 found = _mm256_loadu_ps(numbers + i);
    largest = _mm256_max_ps(_mm256_and_ps(found, no_sign), largest);
    rest = _mm256_fmadd_ps(found, _mm256_setzero_ps(), rest);  // NaN if one is not finite
  }
  float most[kLanes], nothing[kLanes];
  _mm256_storeu_ps(most, largest);
  _mm256_storeu_ps(nothing, rest);
  float magnitude = *std::max_element(most, most + kLanes);
  for (const float one : nothing) magnitude += one;
  const __m256 factor = _mm256_set1_ps(magnitude > 0.f ? 127.f / magnitude : 0.f);
  for (int i = 0; i < count; i += kLanes) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(numbers + i), factor);
    int32_t moved[kLanes];
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(moved),
        _mm256_add_epi32(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(128)));
    for (int lane = 0; lane < std::min(kLanes, count - i); ++lane)
      to[i + lane] = static_cast<uint8_t>(moved[lane]);
  }
  return magnitude / 127.f;
}

// Writes the outputs of a row for a block.
ON_NARROW void unround(
    const int32_t* sums, float scale, const float* scales, const float* biases, float* outputs) {
  for (int i = 0; i < kBlock; i += kLanes) {
    const __m256 sum = _mm256_cvtepi32_ps(load_eight(sums + i));
    const __m256 factor = _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(scales + i));
    _mm256_storeu_ps(outputs + i, _mm256_fmadd_ps(sum, factor, _mm256_loadu_ps(biases + i)));
  }
}

struct Narrow {
  using Float32 = kernels::Float32;
  using Float32WithBfloat16 = kernels::Float32WithBfloat16;
  using Float32WithFloat16 = kernels::Float32WithFloat16;
  using Int8 = kernels::Int8;

  template <class Kind>
  static void add_up(
      const Matrix& matrix, int block, const typename Kind::Input* inputs, int num_rows,
      int num_steps, Sums<typename Kind::Sum> sums) {
    kernels::add_up<Kind>(matrix, block, inputs, num_rows, num_steps, sums);
  }

  static constexpr auto round_row = kernels::round_row;
  static constexpr auto unround = kernels::unround;
};

}  // namespace

void multiply_by_narrow_vectors(const Type& type, const Product& call, int num_threads) {
  multiply_by<Narrow>(type, call, num_threads);
}

#else

void multiply_by_narrow_vectors(const Type&, const Product&, int) {}

#endif

}  // namespace kernels
