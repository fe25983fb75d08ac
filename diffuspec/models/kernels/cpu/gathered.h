// Rows of a cache in float32 or 16 bits, copied into adjacent memory.

#pragma once

#include <cstring>
#include <vector>

#include "attention.h"
#include "vectors.h"

namespace kernels {

// Where a column's key begins among transposed keys; its numbers are kLanes apart.
INLINE int64_t turned_place(int64_t column, int dim) {
  return column / kLanes * kLanes * dim + column % kLanes;
}

// Copies numbers with these strides.
INLINE void copy_apart(const float* from, int from_stride, float* to, int to_stride, int count) {
  for (int i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
}

// Scattered rows of a cache, copied into adjacent memory.
struct Gathered {
  void reset(const Type& type, int count, int width) {
    dim = width;
    size = dim * type.size;
    keys.resize(count * size);
    turned_keys.resize(static_cast<size_t>(count + kBlock) * dim);
    values.resize(count * size);
  }
  void put_keys(int place, int count, const char* from) {
    std::memcpy(&keys[place * size], from, count * size);
  }
  void put_values(int place, int count, const char* from) {
    std::memcpy(&values[place * size], from, count * size);
  }
  void put_turned_keys(int count, const float* from) {  // whole blocks, at place 0
    std::memcpy(turned_keys.data(), from, sizeof(float) * padded(count) * dim);
  }
  void put_turned_key(int place, const float* from) {
    copy_apart(from, kLanes, &turned_keys[turned_place(place, dim)], kLanes, dim);
  }

  int dim = 0;
  size_t size = 0;  // bytes of a row
  std::vector<char> keys, values;
  Numbers turned_keys;  // whole blocks, instead of `keys`
};

}  // namespace kernels
