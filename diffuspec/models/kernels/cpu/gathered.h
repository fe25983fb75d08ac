// Rows of a cache in float32 or 16 bits, copied into adjacent memory.

#pragma once

#include <cstring>
#include <vector>

#include "attention.h"
#include "vectors.h"

namespace kernels {

// Where a column's key begins among transposed keys; its numbers are kLanes apart.
INLINE int64_t transposed_place(int64_t column, int dim) {
  return column / kLanes * kLanes * dim + column % kLanes;
}

// Copies numbers with these strides.
template <class Number>
INLINE void copy_numbers(const char* from, int from_stride, char* to, int to_stride, int count) {
  const Number* source = reinterpret_cast<const Number*>(from);
  Number* sink = reinterpret_cast<Number*>(to);
  for (int i = 0; i < count; ++i) sink[i * to_stride] = source[i * from_stride];
}

INLINE void copy_apart(
    const Type& type, const char* from, int from_stride, char* to, int to_stride, int count) {
  const auto copy = type.size == sizeof(float) ? copy_numbers<float> : copy_numbers<uint16_t>;
  copy(from, from_stride, to, to_stride, count);
}

// Scattered rows of a cache, copied into adjacent memory.
struct Gathered {
  void reset(const Type& of, int count, int width) {
    type = &of;
    dim = width;
    size = dim * of.size;
    keys.resize((count + kBlock) * size);
    values.resize(count * size);
  }
  void put_keys(int place, int count, const char* from) {
    std::memcpy(&keys[place * size], from, count * size);
  }
  void put_values(int place, int count, const char* from) {
    std::memcpy(&values[place * size], from, count * size);
  }
  void put_transposed_keys(int count, const char* from) {  // at place 0
    std::memcpy(keys.data(), from, padded(count) * size);
  }
  void put_transposed_key(int place, const char* from) {
    char* to = at(keys.data(), *type, transposed_place(place, dim));
    copy_apart(*type, from, kLanes, to, kLanes, dim);
  }

  const Type* type = nullptr;
  int dim = 0;
  size_t size = 0;  // bytes of a row
  std::vector<char> keys, values;  // transposed keys: in groups of kLanes columns
};

}  // namespace kernels
