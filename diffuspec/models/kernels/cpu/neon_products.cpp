#include "vector_products.h"

#include "vectors.h"

#if defined(__aarch64__)
#define HAS_NEON 1
#include <arm_neon.h>
#define ON_LEVEL
#define ON_LEVEL_INLINE INLINE
#else
#define HAS_NEON 0
#endif

namespace kernels {

#if HAS_NEON
namespace {

constexpr int kWidth = 4;
constexpr int kPart = 16;
constexpr int kGroup = 6;
constexpr int vectors_of(int) { return kPart / kWidth; }
constexpr bool kFetches = false;

// Each step multiplies one number of a row with one of each output.
struct Float32 {
  using Sum = float;
  using Input = float;
  using Weight = float;
  static constexpr int kRows = kGroup;
  ON_LEVEL_INLINE static float32x4_t load(const float* from) { return vld1q_f32(from); }
  ON_LEVEL_INLINE static void store(float* to, float32x4_t sum) { vst1q_f32(to, sum); }
  ON_LEVEL_INLINE static float32x4_t load_weights(const Weight* from) { return load(from); }
  ON_LEVEL_INLINE static float32x4_t spread(float number) { return vdupq_n_f32(number); }
  ON_LEVEL_INLINE static float32x4_t add(
      float32x4_t sum, float32x4_t number, float32x4_t weights) {
    return vfmaq_f32(sum, number, weights);
  }
};

// The same with weights in 16 bits, widened as they are read.
struct Float32WithBfloat16 : Float32 {
  using Weight = uint16_t;
  ON_LEVEL_INLINE static float32x4_t load_weights(const Weight* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
  }
};

struct Float32WithFloat16 : Float32 {
  using Weight = uint16_t;
  ON_LEVEL_INLINE static float32x4_t load_weights(const Weight* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
  }
};

// The even and the odd ones of every four bytes, as 16-bit numbers.
struct Pairs {
  int16x8_t even, odd;
};

// Each step multiplies four numbers of a row, offset by 128, with four of each output.
struct Int8 {
  using Sum = int32_t;
  using Input = int32_t;
  using Weight = int32_t;
  static constexpr int kRows = 3;
  ON_LEVEL_INLINE static int32x4_t load(const int32_t* from) { return vld1q_s32(from); }
  ON_LEVEL_INLINE static void store(int32_t* to, int32x4_t sum) { vst1q_s32(to, sum); }
  ON_LEVEL_INLINE static Pairs load_weights(const Weight* from) {  // signed
    const int16x8_t bytes = vreinterpretq_s16_s32(load(from));
    return {vshrq_n_s16(vshlq_n_s16(bytes, 8), 8), vshrq_n_s16(bytes, 8)};
  }
  ON_LEVEL_INLINE static Pairs spread(Input numbers) {  // unsigned
    const uint16x8_t bytes = vreinterpretq_u16_s32(vdupq_n_s32(numbers));
    return {vreinterpretq_s16_u16(vandq_u16(bytes, vdupq_n_u16(0xff))),
            vreinterpretq_s16_u16(vshrq_n_u16(bytes, 8))};
  }
  ON_LEVEL_INLINE static int32x4_t add(
      int32x4_t sum, const Pairs& numbers, const Pairs& weights) {
    int32x4_t low = vmull_s16(vget_low_s16(numbers.even), vget_low_s16(weights.even));
    low = vmlal_s16(low, vget_low_s16(numbers.odd), vget_low_s16(weights.odd));
    int32x4_t high = vmull_high_s16(numbers.even, weights.even);
    high = vmlal_high_s16(high, numbers.odd, weights.odd);
    return vaddq_s32(sum, vpaddq_s32(low, high));
  }
};

ON_LEVEL_INLINE VectorOf<kWidth>::Ints to_whole(VectorOf<kWidth>::Floats numbers) {
  return (VectorOf<kWidth>::Ints)vcvtnq_s32_f32((float32x4_t)numbers);
}

}  // namespace
}  // namespace kernels

#include "vector_kernels.h"

namespace kernels {

void multiply_by_neon_vectors(const Type& type, const Product& call, int num_threads) {
  multiply_by<VectorKernels>(type, call, num_threads);
}

#else

void multiply_by_neon_vectors(const Type&, const Product&, int) {}

#endif

}  // namespace kernels
