// The columns of a cache in float32, in the order in which attention reads them.

#pragma once

#include "attention.h"
#include "numbers.h"
#include "vectors.h"

namespace kernels {

// Blocks with transposed keys, [kBlock / kLanes, dim, kLanes], and values, [kBlock, padded dim].
class Columns {
 public:
  // Makes room for blocks with undefined content.
  void reset(const Type& type, int num_blocks, int dim);

  // Store successive columns, the first at a multiple of kLanes. Numbers already in this layout are
  // not copied and must stay in memory while they are read; all calls must then use the same array.
  void put_keys(int64_t place, int count, const char* keys);
  // Keys that are already in groups of kLanes columns.
  void put_transposed_keys(int64_t place, int count, const char* keys);
  void put_values(int64_t place, int count, const char* values);

  const float* keys(int block) const { return keys_ + block * (kBlock * dim_); }
  const float* values(int block) const { return values_ + block * size_; }

 private:
  bool lies_ready() const { return type_ == &kTypes[kFloat32] && stride_ == dim_; }
  void widen(const char* rows, int count, float* to) const;
  void transpose_keys(int64_t place, int count, const char* keys);  // at most kLanes columns

  const Type* type_ = nullptr;
  int dim_ = 0, stride_ = 0;
  int64_t size_ = 0;
  const float *keys_ = nullptr, *values_ = nullptr;
  Numbers transposed_, widened_, group_;
};

}  // namespace kernels
