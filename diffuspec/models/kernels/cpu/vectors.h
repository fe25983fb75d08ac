// Vectors of float32 numbers, compiled for several levels of processors.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

// The attribute of functions for one level of processors, defined by a file that has only such ones
// before it includes this.
#ifndef ON_ONE_LEVEL
#define ON_ONE_LEVEL
#endif
#define ALWAYS_INLINE ON_ONE_LEVEL __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

namespace kernels {

constexpr int kLanes = 16;
template <int kCount>
struct VectorOf {
  typedef float Floats __attribute__((vector_size(4 * kCount)));
  typedef int32_t Ints __attribute__((vector_size(4 * kCount)));
};
using Floats = VectorOf<kLanes>::Floats;
using Ints = VectorOf<kLanes>::Ints;
template <int kCount>
using Count = std::integral_constant<int, kCount>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// 1.5 * 2^23: adding it to a number, of a magnitude of at most 2^22, rounds to an integer
constexpr float kRounding = 12582912.f;

template <class Vector>
INLINE Vector read(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector>
INLINE void write(void* to, Vector value) {
  std::memcpy(to, &value, sizeof value);
}

INLINE Floats load(const float* from) { return read<Floats>(from); }

INLINE void store(float* to, Floats value) { write(to, value); }

constexpr int padded(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

template <class Vector>
INLINE Vector larger(Vector one, Vector other) {
  return one > other ? one : other;
}

template <class Vector>
INLINE Vector smaller(Vector one, Vector other) {
  return one < other ? one : other;
}

// The numbers of two concatenated vectors at some places.
template <int... kPlaces, class Vector>
INLINE Vector picked(Vector one, Vector other) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(one, other, kPlaces...);
#else  // GCC before 12
  return __builtin_shuffle(one, other, decltype(one > other){kPlaces...});
#endif
}

// A permutation of a vector: each number comes from a distance that is a power of two.
template <int kDistance, class Vector, int... kPlaces>
INLINE Vector swapped(Vector all, std::integer_sequence<int, kPlaces...>) {
  return picked<(kPlaces ^ kDistance)...>(all, all);
}

// Reduces kLanes numbers, stored one after another in `parts`, pairwise at distances of 8, 4, 2 and
// 1.
template <class Vector, int kParts, class Join>
INLINE auto join(Vector (&parts)[kParts], Join pair) {
  constexpr int kCount = sizeof(Vector) / sizeof(parts[0][0]);
  static_assert(kCount * kParts == kLanes);
#pragma GCC unroll 2
  for (int half = kParts / 2; half; half /= 2)
#pragma GCC unroll 2
    for (int i = 0; i < half; ++i) parts[i] = pair(parts[i], parts[i + half]);
  Vector all = parts[0];
  constexpr std::make_integer_sequence<int, kCount> places;
  if constexpr (kCount > 8) all = pair(all, swapped<8>(all, places));
  if constexpr (kCount > 4) all = pair(all, swapped<4>(all, places));
  all = pair(all, swapped<2>(all, places));
  all = pair(all, swapped<1>(all, places));
  return all[0];
}

template <class Vector, int kParts>
INLINE auto sum_of(Vector (&parts)[kParts]) {
  const auto add = [](Vector one, Vector other) ALWAYS_INLINE { return one + other; };
  return join(parts, add);
}

template <class Vector, int kParts>
INLINE auto largest_of(Vector (&parts)[kParts]) {
  const auto choose = [](Vector one, Vector other) ALWAYS_INLINE { return larger(one, other); };
  return join(parts, choose);
}

// `exponential` for numbers of at most 88.
template <class Vector>
INLINE Vector exponential_up_to_88(Vector x) {
  using Whole = decltype(x < x);
  x = larger(Vector{} - 88.f, x);  // this order of arguments keeps NaN
  Vector whole = (x * 1.44269504088896341f + kRounding) - kRounding;
  Vector rest = x - whole * 0.693359375f - whole * -2.12194440e-4f;
  Vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.f;
  Whole power = (__builtin_convertvector(whole, Whole) + 127) << 23;
  Vector scale;
  std::memcpy(&scale, &power, sizeof scale);
  return sum * scale;
}

// e^x by the polynomial of Cephes' expf; 0 below -87.7, and e^88 above 88.
template <class Vector>
INLINE Vector exponential(Vector x) {
  return exponential_up_to_88(smaller(Vector{} + 88.f, x));
}

}  // namespace kernels
