// Columns of a cache in float32, in the order in which attention reads them.

#pragma once

#include "numbers.h"
#include "vectors.h"

namespace rows {

constexpr int kBlock = 64;  // columns that are taken together

// Block after block: keys transposed, [padded dim, kBlock], and values, [kBlock, padded dim].
class Columns {
 public:
  // Makes room for blocks, of which nothing is known.
  void reset(const Type& type, int num_blocks, int dim);

  const float* keys(int block) const { return &keys_[block * size_]; }
  const float* values(int block) const { return &values_[block * size_]; }

  void put(int64_t place, const char* key, const char* value) {
    put_key(place, key);
    put_values(place, 1, value);
  }

  // Puts successive columns, the first of them at a multiple of kLanes.
  void put_all(int64_t place, int count, const char* keys, const char* values);

  // Puts kBlock columns as block 0, and returns where their values are: in the cache if they lie there
  // as they do here.
  const float* put_block(const char* keys, const char* values);

 private:
  bool lies_ready() const { return type_ == &kTypes[kFloat32] && stride_ == dim_; }
  void put_key(int64_t place, const char* key);
  void put_keys(int64_t place, const char* keys);  // of kLanes columns
  void put_values(int64_t place, int count, const char* values);
  float* keys_of(int64_t place) { return &keys_[place / kBlock * size_ + place % kBlock]; }

  const Type* type_ = nullptr;
  int dim_ = 0, stride_ = 0;
  int64_t size_ = 0;
  Numbers keys_, values_, group_;
};

}  // namespace rows
