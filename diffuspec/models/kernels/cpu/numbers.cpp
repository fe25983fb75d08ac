#include "numbers.h"

#include <cstring>

#include "registers.h"
#include "vectors.h"

#if defined(__x86_64__)
#define HAS_F16C 1
#include <immintrin.h>
#else
#define HAS_F16C 0
#endif

namespace kernels {
namespace {

INLINE uint32_t bits_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

void copy(const void* from, void* to, int count) {
  if (from != to) std::memcpy(to, from, count * sizeof(float));
}
void copy_in(const void* from, float* to, int count) { copy(from, to, count); }
void copy_out(const float* from, void* to, int count) { copy(from, to, count); }

void widen_bfloat16(const void* from, float* to, int count) {
  const uint16_t* halves = static_cast<const uint16_t*>(from);
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < count; ++i) to[i] = float_of(uint32_t{halves[i]} << 16);
  });
}

void narrow_bfloat16(const float* from, void* to, int count) {
  uint16_t* halves = static_cast<uint16_t*>(to);
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < count; ++i) {
      const uint32_t bits = bits_of(from[i]);
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      halves[i] = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
    }
  });
}

#if HAS_F16C
ON_NARROW_REGISTERS void widen_float16_by_eight(const uint16_t* from, float* to, int count) {
  int i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}

ON_WIDE_REGISTERS void widen_float16_by_sixteen(const uint16_t* from, float* to, int count) {
  int i = 0;
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}
#endif

void widen_float16(const void* from, float* to, int count) {
  const uint16_t* halves = static_cast<const uint16_t*>(from);
#if HAS_F16C
  if (level() >= kWide) return widen_float16_by_sixteen(halves, to, count);
  if (level() >= kNarrow) return widen_float16_by_eight(halves, to, count);
#endif
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < count; ++i) {
      const uint32_t bits = halves[i], magnitude = (bits & 0x7fff) << 13;
      // handles subnormal numbers too
      const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
      const uint32_t found = (bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : scaled;
      to[i] = float_of(found | (bits & 0x8000) << 16);
    }
  });
}

void narrow_float16(const float* from, void* to, int count) {
  uint16_t* halves = static_cast<uint16_t*>(to);
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < count; ++i) {
      const uint32_t bits = bits_of(from[i]), magnitude = bits & 0x7fffffff;
      const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
      const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
      uint32_t found = magnitude < 113u << 23 ? subnormal : normal;
      found = magnitude >= 0x477ff000 ? 0x7c00 : found;
      found = magnitude > 0x7f800000 ? 0x7e00 : found;
      halves[i] = found | (bits >> 16 & 0x8000);
    }
  });
}

}  // namespace

const Type kTypes[] = {
    {4, copy_in, copy_out},
    {2, widen_bfloat16, narrow_bfloat16},
    {2, widen_float16, narrow_float16},
};

}  // namespace kernels
