// Rows of a cache in float32 or 16 bits, copied one after another.

#pragma once

#include <cstring>
#include <vector>

#include "attention.h"
#include "vectors.h"

namespace kernels {

// Where a column's key begins among transposed keys; its numbers stand kLanes apart.
INLINE int64_t turned_place(int64_t column, int dim) {
  return column / kLanes * kLanes * dim + column % kLanes;
}

// Copies numbers that stand at these distances.
INLINE void copy_apart(const float* from, int from_stride, float* to, int to_stride, int count) {
  for (int i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
}

// Rows of a cache that stand elsewhere in it, one after another.
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
  void put_turned_keys(int count, const float* from) {  // at place 0, in whole blocks
    std::memcpy(turned_keys.data(), from, sizeof(float) * padded(count) * dim);
  }
  void put_turned_key(int place, const float* from) {
    copy_apart(from, kLanes, &turned_keys[turned_place(place, dim)], kLanes, dim);
  }

  int dim = 0;
  size_t size = 0;  // of a row, in bytes
  std::vector<char> keys, values;
  Numbers turned_keys;  // in whole blocks, instead of `keys`
};

}  // namespace kernels
