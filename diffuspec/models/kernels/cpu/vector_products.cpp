#include "vector_products.h"

#if defined(__x86_64__)
#define HAS_VECTORS 1
#include <immintrin.h>
#define ON_ONE_LEVEL __attribute__((target("arch=x86-64-v4,avx512vnni,avx512bf16")))
#else
#define HAS_VECTORS 0
#endif

#include "block_products.h"
#include "level.h"
#include "vectors.h"

#include <cstring>
#include <vector>

namespace kernels {

#if HAS_VECTORS
namespace {

constexpr int kWidth = 16;
constexpr int kPart = kBlock;
constexpr int kGroup = 6;
constexpr int vectors_of(int) { return kPart / kWidth; }
constexpr bool kFetches = true;

INLINE __m256i load_16_bits(const uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

struct FloatSums {
  using Sum = float;
  INLINE static __m512 load(const Sum* from) { return _mm512_loadu_ps(from); }
  INLINE static void store(Sum* to, __m512 sum) { _mm512_storeu_ps(to, sum); }
};

// Several numbers in four bytes, of a row and of each output.
struct FourBytes {
  using Input = int32_t;
  using Weight = int32_t;
  static constexpr int kRows = kGroup;
  INLINE static __m512i load_weights(const Weight* from) { return _mm512_loadu_si512(from); }
  INLINE static __m512i spread(Input numbers) { return _mm512_set1_epi32(numbers); }
};

// Each step multiplies one number of a row with one of each output.
struct Float32 : FloatSums {
  using Input = float;
  using Weight = float;
  static constexpr int kRows = kGroup;
  INLINE static __m512 load_weights(const Weight* from) { return load(from); }
  INLINE static __m512 spread(Input number) { return _mm512_set1_ps(number); }
  INLINE static __m512 add(__m512 sum, __m512 number, __m512 weights) {
    return _mm512_fmadd_ps(number, weights, sum);
  }
};

// The same with weights in 16 bits, widened as they are read.
struct Float32WithBfloat16 : Float32 {
  using Weight = uint16_t;
  INLINE static __m512 load_weights(const Weight* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bits(from)), 16));
  }
};

struct Float32WithFloat16 : Float32 {
  using Weight = uint16_t;
  INLINE static __m512 load_weights(const Weight* from) {
    return _mm512_cvtph_ps(load_16_bits(from));
  }
};

// Each step multiplies two numbers of a row with two of each output.
struct Bfloat16 : FloatSums, FourBytes {
  INLINE static __m512 add(__m512 sum, __m512i numbers, __m512i weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)numbers, (__m512bh)weights);
  }
};

// Each step multiplies four numbers of a row, offset by 128, with four of each output.
struct Int8 : FourBytes {
  static constexpr bool kIsOffset = true;
  using Sum = int32_t;
  INLINE static __m512i load(const Sum* from) { return _mm512_loadu_si512(from); }
  INLINE static void store(Sum* to, __m512i sum) { _mm512_storeu_si512(to, sum); }
  INLINE static __m512i add(__m512i sum, __m512i numbers, __m512i weights) {
    return _mm512_dpbusd_epi32(sum, numbers, weights);
  }
};

INLINE VectorOf<kWidth>::Ints to_whole(__m512 numbers) {
  return (VectorOf<kWidth>::Ints)_mm512_cvtps_epi32(numbers);
}

}  // namespace
}  // namespace kernels

#include "vector_kernels.h"

namespace kernels {
namespace {

// Rows with an even number of numbers, padded with a 0 if necessary.
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
        call, block, inputs.data(), inputs.num_steps,
        {sums.data(), kBlock, matrix.biases + block * kBlock});
    write(kTypes[kBfloat16], call, block, sums.data());
  });
}

}  // namespace

void multiply_by_wide_vectors(const Type& type, const Product& call, int num_threads) {
  if (!call.matrix.scales && &type == &kTypes[kBfloat16] && has_bfloat16_vectors())
    return multiply_in_bfloat16(call, num_threads);
  multiply_by<VectorKernels>(type, call, num_threads);
}

#else

void multiply_by_wide_vectors(const Type&, const Product&, int) {}

#endif

}  // namespace kernels
