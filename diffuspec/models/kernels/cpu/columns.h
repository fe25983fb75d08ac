// Columns of a cache in float32, in the order in which attention reads them.

#pragma once

#include "attention.h"
#include "numbers.h"
#include "vectors.h"

namespace kernels {

// Block after block: keys transposed, [kBlock / kLanes, dim, kLanes], and values, [kBlock, padded dim].
class Columns {
 public:
  // Makes room for blocks, of which nothing is known.
  void reset(const Type& type, int num_blocks, int dim);

  // Put successive columns, the first of them at a multiple of kLanes. Values that lie ready stay where
  // they are, and must lie there as long as they are read: each call has them from the same array.
  void put_keys(int64_t place, int count, const char* keys);
  void put_values(int64_t place, int count, const char* values);

  // Uses keys that are transposed already, where they are.
  void use_keys(const float* turned) { keys_ = turned; }

  const float* keys(int block) const { return keys_ + block * (kBlock * dim_); }
  const float* values(int block) const { return values_ + block * size_; }

 private:
  bool lies_ready() const { return type_ == &kTypes[kFloat32] && stride_ == dim_; }
  void turn_keys(int64_t place, int count, const char* keys);  // of at most kLanes columns

  const Type* type_ = nullptr;
  int dim_ = 0, stride_ = 0;
  int64_t size_ = 0;
  const float *keys_ = nullptr, *values_ = nullptr;
  Numbers turned_, widened_, group_;
};

}  // namespace kernels
