// Vectors of float32 numbers, compiled for several generations of processors.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#define INLINE inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Compiled for three generations of processors; the loader takes the one for this machine.
#define FOR_EVERY_CPU \
  __attribute__((noinline, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_CPU
#endif


namespace rows {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
constexpr float kInfinity = std::numeric_limits<float>::infinity();

INLINE Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

constexpr int padded(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

constexpr Ints kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Adds, or compares, neighbours at a distance of 8, 4, 2 and 1.
INLINE float sum_of(Floats value) {
  value += __builtin_shuffle(value, kLane ^ 8);
  value += __builtin_shuffle(value, kLane ^ 4);
  value += __builtin_shuffle(value, kLane ^ 2);
  value += __builtin_shuffle(value, kLane ^ 1);
  return value[0];
}

INLINE Floats larger(Floats one, Floats other) { return one > other ? one : other; }

INLINE Floats smaller(Floats one, Floats other) { return one < other ? one : other; }

INLINE float largest_of(Floats value) {
  value = larger(value, __builtin_shuffle(value, kLane ^ 8));
  value = larger(value, __builtin_shuffle(value, kLane ^ 4));
  value = larger(value, __builtin_shuffle(value, kLane ^ 2));
  value = larger(value, __builtin_shuffle(value, kLane ^ 1));
  return value[0];
}

// e^x with the polynomial of Cephes' expf; 0 below -87.7, and e^88 above 88.
INLINE Floats exponential(Floats x) {
  x = larger(Floats{} - 88.f, x);  // in this order, so that NaN stays NaN
  x = smaller(Floats{} + 88.f, x);
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number
  Floats whole = (x * 1.44269504088896341f + magic) - magic;
  Floats rest = x - whole * 0.693359375f - whole * -2.12194440e-4f;
  Floats sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.f;
  Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Floats scale;
  std::memcpy(&scale, &power, sizeof scale);
  return sum * scale;
}
}  // namespace rows
