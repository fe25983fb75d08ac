// Kinds of products, see `vector_kernels.h`, with vectors of four numbers: what every processor of an
// architecture has. With USES_DOTS, integers of 8 bits are multiplied by dot products: see level.h.

#pragma once

#include "vectors.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kernels {
namespace {

constexpr int kWidth = 4;
constexpr int kPart = 16;
#if defined(__aarch64__)  // which has 32 registers
constexpr int kGroup = 6;
#else
constexpr int kGroup = 2;
#endif
constexpr int vectors_of(int) { return kPart / kWidth; }
constexpr bool kFetches = false;

using Four = VectorOf<kWidth>::Floats;
using FourWhole = VectorOf<kWidth>::Ints;
typedef uint16_t FourHalves __attribute__((vector_size(2 * kWidth)));

INLINE FourWhole load_16_bits(const uint16_t* from) {
  return __builtin_convertvector(read<FourHalves>(from), FourWhole);
}

// Each step multiplies one number of a row with one of each output.
struct Float32 {
  using Sum = float;
  using Input = float;
  using Weight = float;
  static constexpr int kRows = kGroup;
  INLINE static Four load(const float* from) { return read<Four>(from); }
  INLINE static void store(float* to, Four sum) { write(to, sum); }
  INLINE static Four load_weights(const Weight* from) { return load(from); }
  INLINE static Four spread(float number) { return Four{} + number; }
  INLINE static Four add(Four sum, Four number, Four weights) { return number * weights + sum; }
};

// The same with weights in 16 bits, widened as they are read.
struct Float32WithBfloat16 : Float32 {
  using Weight = uint16_t;
  INLINE static Four load_weights(const Weight* from) { return (Four)(load_16_bits(from) << 16); }
};

struct Float32WithFloat16 : Float32 {
  using Weight = uint16_t;
  INLINE static Four load_weights(const Weight* from) {
#if defined(__aarch64__)
    return (Four)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    const FourWhole bits = load_16_bits(from), magnitude = (bits & 0x7fff) << 13;
    const FourWhole scaled = (FourWhole)((Four)magnitude * 0x1p112f);  // subnormal numbers, too
    const FourWhole found = (bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : scaled;
    return (Four)(found | (bits & 0x8000) << 16);
#endif
  }
};

// Each step multiplies four numbers of a row, offset by 128, with four of each output.
struct FourBytes {
  using Sum = int32_t;
  using Input = int32_t;
  using Weight = int32_t;
};

#if USES_DOTS
struct Int8 : FourBytes {
  static constexpr int kRows = kGroup;
  static constexpr bool kIsOffset = false;
  INLINE static int32x4_t load(const int32_t* from) { return vld1q_s32(from); }
  INLINE static void store(int32_t* to, int32x4_t sum) { vst1q_s32(to, sum); }
  INLINE static int8x16_t load_weights(const Weight* from) {
    return vreinterpretq_s8_s32(load(from));
  }
  INLINE static int8x16_t spread(Input numbers) {  // without the offset
    return vreinterpretq_s8_s32(vdupq_n_s32(numbers ^ int32_t(0x80808080)));
  }
  INLINE static int32x4_t add(int32x4_t sum, int8x16_t numbers, int8x16_t weights) {
    return vdotq_s32(sum, numbers, weights);
  }
};
#elif defined(__aarch64__)
// The even and the odd ones of every four bytes, as 16-bit numbers.
struct Pairs {
  int16x8_t even, odd;
};

struct Int8 : FourBytes {
  static constexpr int kRows = kGroup / 2;
  static constexpr bool kIsOffset = true;
  INLINE static int32x4_t load(const int32_t* from) { return vld1q_s32(from); }
  INLINE static void store(int32_t* to, int32x4_t sum) { vst1q_s32(to, sum); }
  INLINE static Pairs load_weights(const Weight* from) {  // signed
    const int16x8_t bytes = vreinterpretq_s16_s32(load(from));
    return {vshrq_n_s16(vshlq_n_s16(bytes, 8), 8), vshrq_n_s16(bytes, 8)};
  }
  INLINE static Pairs spread(Input numbers) {  // unsigned
    const uint16x8_t bytes = vreinterpretq_u16_s32(vdupq_n_s32(numbers));
    return {vreinterpretq_s16_u16(vandq_u16(bytes, vdupq_n_u16(0xff))),
            vreinterpretq_s16_u16(vshrq_n_u16(bytes, 8))};
  }
  INLINE static int32x4_t add(
      int32x4_t sum, const Pairs& numbers, const Pairs& weights) {
    int32x4_t low = vmull_s16(vget_low_s16(numbers.even), vget_low_s16(weights.even));
    low = vmlal_s16(low, vget_low_s16(numbers.odd), vget_low_s16(weights.odd));
    int32x4_t high = vmull_high_s16(numbers.even, weights.even);
    high = vmlal_high_s16(high, numbers.odd, weights.odd);
    return vaddq_s32(sum, vpaddq_s32(low, high));
  }
};
#else
struct Int8 : FourBytes {
  static constexpr int kRows = kGroup / 2;
  static constexpr bool kIsOffset = true;
  INLINE static FourWhole load(const int32_t* from) { return read<FourWhole>(from); }
  INLINE static void store(int32_t* to, FourWhole sum) { write(to, sum); }
  INLINE static FourWhole load_weights(const Weight* from) { return load(from); }
  INLINE static FourWhole spread(Input numbers) { return FourWhole{} + numbers; }
  INLINE static FourWhole add(FourWhole sum, FourWhole numbers, FourWhole weights) {
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += 8) sum += (numbers >> i & 255) * (weights << (24 - i) >> 24);
    return sum;
  }
};
#endif

INLINE FourWhole to_whole(Four numbers) {
#if defined(__aarch64__)
  return (FourWhole)vcvtnq_s32_f32((float32x4_t)numbers);
#else
  const Four roundings = Four{} + kRounding;
  return (FourWhole)(numbers + roundings) - (FourWhole)roundings;
#endif
}

}  // namespace
}  // namespace kernels
