// Columns of a cache in float32, in the order in which attention reads them.

#pragma once

#include <memory>

#include "numbers.h"
#include "vectors.h"

namespace rows {

constexpr int kBlock = 64;  // columns that are taken together

// Block after block: keys transposed, [padded dim, kBlock], and values, [kBlock, padded dim].
class Columns {
 public:
  Columns(const Type& type, int num_blocks, int dim)
      : type_(type), dim_(dim), stride_(padded(dim)), size_(kBlock * stride_),
        keys_(new float[num_blocks * size_]), values_(new float[num_blocks * size_]),
        group_(new float[kLanes * stride_]) {}

  const float* keys(int block) const { return &keys_[block * size_]; }
  const float* values(int block) const { return &values_[block * size_]; }

  void put(int64_t place, const char* key, const char* value);

  // Puts successive columns, the first of them at a multiple of kLanes.
  void put_all(int64_t place, int count, const char* keys, const char* values);

  // Puts kBlock columns as block 0, and returns where their values are: in the cache if they lie there
  // as they do here.
  const float* put_block(const char* keys, const char* values);

 private:
  using Scratch = std::unique_ptr<float[]>;  // numbers that are written before they are read

  bool lies_ready() const { return &type_ == &kTypes[kFloat32] && stride_ == dim_; }
  void put_keys(int64_t place, const char* keys);  // of kLanes columns
  float* keys_of(int64_t place) { return &keys_[place / kBlock * size_ + place % kBlock]; }
  void put_value(int64_t place, const char* value) {
    type_.widen(value, &values_[place * stride_], dim_);
  }

  const Type& type_;
  const int dim_, stride_;
  const int64_t size_;
  Scratch keys_, values_, group_;
};

}  // namespace rows
