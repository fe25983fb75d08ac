#include "vector_products.h"

#if defined(__x86_64__)
#define HAS_NARROW 1
#include <immintrin.h>
#define ON_ONE_LEVEL __attribute__((target("arch=x86-64-v3")))
#else
#define HAS_NARROW 0
#endif

#include "vectors.h"

namespace kernels {

#if HAS_NARROW
namespace {

constexpr int kWidth = 8;
constexpr int kPart = 32;
constexpr int kGroup = 6;
constexpr int vectors_of(int num_rows) { return num_rows <= 3 ? 4 : 2; }
constexpr bool kFetches = true;

INLINE __m256i load_eight(const int32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

INLINE __m128i load_16_bits(const uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Each step multiplies one number of a row with one of each output.
struct Float32 {
  using Sum = float;
  using Input = float;
  using Weight = float;
  static constexpr int kRows = kGroup;
  INLINE static __m256 load(const float* from) { return _mm256_loadu_ps(from); }
  INLINE static void store(float* to, __m256 sum) { _mm256_storeu_ps(to, sum); }
  INLINE static __m256 load_weights(const Weight* from) { return load(from); }
  INLINE static __m256 spread(float number) { return _mm256_set1_ps(number); }
  INLINE static __m256 add(__m256 sum, __m256 number, __m256 weights) {
    return _mm256_fmadd_ps(number, weights, sum);
  }
};

// The same with weights in 16 bits, widened as they are read.
struct Float32WithBfloat16 : Float32 {
  using Weight = uint16_t;
  INLINE static __m256 load_weights(const Weight* from) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bits(from)), 16);
    return _mm256_castsi256_ps(bits);
  }
};

struct Float32WithFloat16 : Float32 {
  using Weight = uint16_t;
  INLINE static __m256 load_weights(const Weight* from) {
    return _mm256_cvtph_ps(load_16_bits(from));
  }
};

// The even and the odd ones of every four bytes, as 16-bit numbers.
struct Pairs {
  __m256i even, odd;
};

// Each step multiplies four numbers of a row, offset by 128, with four of each output.
struct Int8 {
  using Sum = int32_t;
  using Input = int32_t;
  using Weight = int32_t;
  static constexpr bool kIsOffset = true;
  static constexpr int kRows = 4;
  INLINE static __m256i load(const int32_t* from) { return load_eight(from); }
  INLINE static void store(int32_t* to, __m256i sum) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum);
  }
  INLINE static Pairs load_weights(const Weight* from) {  // signed
    const __m256i bytes = load_eight(from);
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
  }
  INLINE static Pairs spread(Input numbers) {  // unsigned
    const __m256i bytes = _mm256_set1_epi32(numbers);
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(bytes, 8)};
  }
  INLINE static __m256i add(__m256i sum, const Pairs& numbers, const Pairs& weights) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(numbers.even, weights.even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(numbers.odd, weights.odd));
  }
};

INLINE VectorOf<kWidth>::Ints to_whole(__m256 numbers) {
  return (VectorOf<kWidth>::Ints)_mm256_cvtps_epi32(numbers);
}

}  // namespace
}  // namespace kernels

#include "vector_kernels.h"

namespace kernels {

void multiply_by_narrow_vectors(const Type& type, const Product& call, int num_threads) {
  multiply_by<VectorKernels>(type, call, num_threads);
}

#else

void multiply_by_narrow_vectors(const Type&, const Product&, int) {}

#endif

}  // namespace kernels
