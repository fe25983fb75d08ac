// Columns of a cache in float32, in the order in which attention reads them.

#pragma once

#include "attention.h"
#include "numbers.h"
#include "vectors.h"

namespace rows {

// Block after block: keys transposed, [padded dim, kBlock], and values, [kBlock, padded dim].
class Columns {
 public:
  // Makes room for blocks, of which nothing is known.
  void reset(const Type& type, int num_blocks, int dim);

  // Puts successive columns, the first of them at a multiple of kLanes. Values that lie ready stay where
  // they are, and must lie there as long as they are read: each call has them from the same array.
  void put(int64_t place, int count, const char* keys, const char* values);

  const float* keys(int block) const { return &keys_[block * size_]; }
  const float* values(int block) const { return values_ + block * size_; }

 private:
  bool lies_ready() const { return type_ == &kTypes[kFloat32] && stride_ == dim_; }
  void put_keys(int64_t place, int count, const char* keys);  // of at most kLanes columns

  const Type* type_ = nullptr;
  int dim_ = 0, stride_ = 0;
  int64_t size_ = 0;
  const float* values_ = nullptr;
  Numbers keys_, widened_, group_;
};

}  // namespace rows
