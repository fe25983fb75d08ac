#include "vector_products.h"

#include "block_products.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_VECTORS 1
#include <immintrin.h>
#define ON_VECTORS __attribute__((target("arch=x86-64-v4,avx512vnni,avx512bf16")))
#define ON_VECTORS_INLINE ON_VECTORS inline __attribute__((always_inline))
#else
#define HAS_VECTORS 0
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

namespace kernels {

#if HAS_VECTORS
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = kBlock / kLanes;
constexpr int kGroup = 6;   // rows, whose sums fill the registers
constexpr int kWorthWidening = 2 * kGroup;  // rows, for which weights are widened once
constexpr int kAhead = 32;  // steps whose weights are fetched in advance, unless rows are one group
constexpr int kSecondLevel = 2;  // the cache into which they are fetched

ON_VECTORS_INLINE __m256i load_16_bits(const uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

struct FloatSums {
  using Sum = float;
  ON_VECTORS_INLINE static __m512 load(const Sum* from) { return _mm512_loadu_ps(from); }
  ON_VECTORS_INLINE static void store(Sum* to, __m512 sum) { _mm512_storeu_ps(to, sum); }
};

// Several numbers in four bytes, of a row and of each output.
struct FourBytes {
  using Input = int32_t;
  using Weight = int32_t;
  ON_VECTORS_INLINE static __m512i load_weights(const Weight* from) { return _mm512_loadu_si512(from); }
  ON_VECTORS_INLINE static __m512i spread(Input numbers) { return _mm512_set1_epi32(numbers); }
};

// At each step one number of a row is multiplied with one of each output.
struct Float32 : FloatSums {
  using Input = float;
  using Weight = float;
  ON_VECTORS_INLINE static __m512 load_weights(const Weight* from) { return load(from); }
  ON_VECTORS_INLINE static __m512 spread(Input number) { return _mm512_set1_ps(number); }
  ON_VECTORS_INLINE static __m512 add(__m512 sum, __m512 number, __m512 weights) {
    return _mm512_fmadd_ps(number, weights, sum);
  }
};

// The same with weights that lie in memory in 16 bits, and are widened as they are read.
struct Float32WithBfloat16 : Float32 {
  using Weight = uint16_t;
  ON_VECTORS_INLINE static __m512 load_weights(const Weight* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bits(from)), 16));
  }
};

struct Float32WithFloat16 : Float32 {
  using Weight = uint16_t;
  ON_VECTORS_INLINE static __m512 load_weights(const Weight* from) {
    return _mm512_cvtph_ps(load_16_bits(from));
  }
};

// At each step two numbers of a row are multiplied with two of each output.
struct Bfloat16 : FloatSums, FourBytes {
  ON_VECTORS_INLINE static __m512 add(__m512 sum, __m512i numbers, __m512i weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)numbers, (__m512bh)weights);
  }
};

// At each step four numbers of a row, each 128 too high, are multiplied with four of each output.
struct Int8 : FourBytes {
  using Sum = int32_t;
  ON_VECTORS_INLINE static __m512i load(const Sum* from) { return _mm512_loadu_si512(from); }
  ON_VECTORS_INLINE static void store(Sum* to, __m512i sum) { _mm512_storeu_si512(to, sum); }
  ON_VECTORS_INLINE static __m512i add(__m512i sum, __m512i numbers, __m512i weights) {
    return _mm512_dpbusd_epi32(sum, numbers, weights);
  }
};

// Adds what some steps contribute to the sums of N rows.
template <class Kind, int N>
ON_VECTORS_INLINE void add_group(
    const typename Kind::Input* inputs, int64_t stride, const typename Kind::Weight* weights,
    int num_steps, int num_ahead, Sums<typename Kind::Sum> sums) {
  decltype(Kind::load(nullptr)) found[N][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      found[i][v] = Kind::load((sums.first ? sums.first : sums.to + i * sums.stride) + v * kLanes);
  for (int step = 0; step < num_steps; ++step, weights += kBlock) {
    decltype(Kind::load_weights(nullptr)) weight[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (num_ahead) __builtin_prefetch(weights + num_ahead * kBlock + v * kLanes, 0, kSecondLevel);
      weight[v] = Kind::load_weights(weights + v * kLanes);
    }
#pragma GCC unroll 6
    for (int i = 0; i < N; ++i) {
      const auto number = Kind::spread(inputs[i * stride + step]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) found[i][v] = Kind::add(found[i][v], number, weight[v]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Kind::store(sums.to + i * sums.stride + v * kLanes, found[i][v]);
}

template <class Kind>
ON_VECTORS void add_rows(
    const typename Kind::Input* inputs, int64_t stride, int num_rows,
    const typename Kind::Weight* weights, int num_steps, int num_ahead,
    Sums<typename Kind::Sum> sums) {
  for (int num_groups = divided_up(num_rows, kGroup); num_groups; --num_groups) {
    const int size = divided_up(num_rows, num_groups);
    if (size == 6) add_group<Kind, 6>(inputs, stride, weights, num_steps, num_ahead, sums);
    if (size == 5) add_group<Kind, 5>(inputs, stride, weights, num_steps, num_ahead, sums);
    if (size == 4) add_group<Kind, 4>(inputs, stride, weights, num_steps, num_ahead, sums);
    if (size == 3) add_group<Kind, 3>(inputs, stride, weights, num_steps, num_ahead, sums);
    if (size == 2) add_group<Kind, 2>(inputs, stride, weights, num_steps, num_ahead, sums);
    if (size == 1) add_group<Kind, 1>(inputs, stride, weights, num_steps, num_ahead, sums);
    inputs += size * stride;
    sums.to += size * sums.stride;
    num_rows -= size;
    if (num_ahead) num_ahead = kChunk;  // these are in the cache now: fetch those of the next chunk
  }
}

// Writes some steps' weights as float32 numbers, and has those of the next chunk fetched.
template <class Kind>
ON_VECTORS void widen(const typename Kind::Weight* weights, int num_steps, float* to) {
  for (int step = 0; step < num_steps; ++step, weights += kBlock) {
    __builtin_prefetch(weights + kChunk * kBlock, 0, kSecondLevel);
    __builtin_prefetch(weights + (kChunk + 1) * kBlock - 1, 0, kSecondLevel);
#pragma GCC unroll 4
    for (int v = 0; v < kBlock; v += kLanes, to += kLanes)
      _mm512_store_ps(to, Kind::load_weights(weights + v));
  }
}

// Adds up all steps of rows, [num_rows, num_steps], with a block of outputs.
template <class Kind>
void add_up(
    const Matrix& matrix, int block, const typename Kind::Input* inputs, int num_rows,
    int num_steps, Sums<typename Kind::Sum> sums) {
  constexpr bool is_widened = std::is_same_v<typename Kind::Weight, uint16_t>;
  const auto* weights = reinterpret_cast<const typename Kind::Weight*>(matrix.weights);
  weights += int64_t{block} * num_steps * kBlock;
  const int num_ahead = num_rows > kGroup ? kAhead : 0;  // one group reads as fast as memory gives
  alignas(64) float wide[is_widened ? kChunk * kBlock : 1];
  for (int step = 0; step < num_steps; step += kChunk, sums.first = nullptr) {
    const int count = std::min(kChunk, num_steps - step);
    const auto* from = weights + step * kBlock;
    if constexpr (is_widened) {
      if (num_rows >= kWorthWidening) {
        widen<Kind>(from, count, wide);
        add_rows<Float32>(inputs + step, num_steps, num_rows, wide, count, 0, sums);
        continue;
      }
    }
    add_rows<Kind>(inputs + step, num_steps, num_rows, from, count, num_ahead, sums);
  }
}

// Rows of an even number of numbers, the last of which is 0 where there is one more than there were.
class PairedRows {
 public:
  explicit PairedRows(const Product& call)
      : num_steps(divided_up(call.matrix.num_inputs, 2)), numbers_(call.inputs) {
    const int count = call.matrix.num_inputs;
    if (count % 2 == 0) return;
    padded_.resize(size_t(call.num_rows) * num_steps);
    for (int i = 0; i < call.num_rows; ++i)
      std::memcpy(&padded_[size_t(i) * num_steps], call.inputs + int64_t{2} * i * count, 2 * count);
    numbers_ = reinterpret_cast<const char*>(padded_.data());
  }

  const int32_t* data() const { return reinterpret_cast<const int32_t*>(numbers_); }

  const int num_steps;

 private:
  const char* numbers_;
  std::vector<int32_t> padded_;
};

void multiply_in_bfloat16(const Product& call, int num_threads) {
  const PairedRows inputs(call);
  const Matrix& matrix = call.matrix;
  for_each_block(matrix, num_threads, [&](int block) {
    Numbers sums(size_t(call.num_rows) * kBlock);
    add_up<Bfloat16>(
        matrix, block, inputs.data(), call.num_rows, inputs.num_steps,
        {sums.data(), kBlock, matrix.biases + block * kBlock});
    write(kTypes[kBfloat16], call, block, sums.data());
  });
}

// See RoundedRows.
ON_VECTORS float round_row(const float* numbers, int count, uint8_t* to) {
  __m512 largest = _mm512_setzero_ps(), rest = largest;  // numbers are padded with zeros
  for (int i = 0; i < count; i += kLanes) {
    const __m512 found = _mm512_loadu_ps(numbers + i);
    largest = _mm512_max_ps(_mm512_abs_ps(found), largest);
    rest = _mm512_fmadd_ps(found, _mm512_setzero_ps(), rest);  // NaN if one is not finite
  }
  const float magnitude = _mm512_reduce_max_ps(largest) + _mm512_reduce_add_ps(rest);
  const __m512 factor = _mm512_set1_ps(magnitude > 0.f ? 127.f / magnitude : 0.f);
  for (int i = 0; i < count; i += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(numbers + i), factor);
    const __m512i moved = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), _mm512_set1_epi32(128));
    const int left = count - i;
    const __mmask16 mask = left < kLanes ? (1u << left) - 1 : 0xffff;
    _mm512_mask_cvtusepi32_storeu_epi8(to + i, mask, moved);
  }
  return magnitude / 127.f;
}

// Writes the outputs of a row for a block.
ON_VECTORS void unround(
    const int32_t* sums, float scale, const float* scales, const float* biases, float* outputs) {
  for (int i = 0; i < kBlock; i += kLanes) {
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + i));
    const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_loadu_ps(scales + i));
    _mm512_storeu_ps(outputs + i, _mm512_fmadd_ps(sum, factor, _mm512_loadu_ps(biases + i)));
  }
}

struct Wide {
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

void multiply_by_wide_vectors(const Type& type, const Product& call, int num_threads) {
  if (!call.matrix.scales && &type == &kTypes[kBfloat16])
    return multiply_in_bfloat16(call, num_threads);
  multiply_by<Wide>(type, call, num_threads);
}

#else

void multiply_by_wide_vectors(const Type&, const Product&, int) {}

#endif

}  // namespace kernels
