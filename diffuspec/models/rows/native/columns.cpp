#include "columns.h"

#include <algorithm>

namespace rows {
namespace {

// Interleaves each row of the first half with its fellow of the second half.
INLINE void interleave(const Floats* rows, Floats* turned) {
  const Ints low = kLane / 2 + kLane % 2 * kLanes, high = low + kLanes / 2;
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) {
    turned[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
    turned[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
  }
}

// Writes the transpose of 16 x 16 numbers.
FOR_EVERY_CPU void transpose(const float* from, int from_stride, float* to, int to_stride) {
  Floats rows[kLanes], turned[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_stride);
  interleave(rows, turned);
  interleave(turned, rows);
  interleave(rows, turned);
  interleave(turned, rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * to_stride, rows[i]);
}

}  // namespace

void Columns::reset(const Type& type, int num_blocks, int dim) {
  type_ = &type;
  dim_ = dim;
  stride_ = padded(dim);
  size_ = int64_t{kBlock} * stride_;
  keys_.resize(num_blocks * size_);
  values_.resize(num_blocks * size_);
  group_.resize(kLanes * stride_);
}

void Columns::put_key(int64_t place, const char* key) {
  type_->widen(key, group_.data(), dim_);
  float* keys = keys_of(place);
  for (int i = 0; i < dim_; ++i) keys[i * kBlock] = group_[i];
}

void Columns::put_values(int64_t place, int count, const char* values) {
  float* to = &values_[place * stride_];
  if (stride_ == dim_) return type_->widen(values, to, count * dim_);
  for (int i = 0; i < count; ++i) type_->widen(at(values, *type_, i * dim_), to + i * stride_, dim_);
}

void Columns::put_all(int64_t place, int count, const char* keys, const char* values) {
  const int64_t size = dim_ * type_->size;
  for (; count >= kLanes; count -= kLanes, place += kLanes) {
    put_keys(place, keys);
    put_values(place, kLanes, values);
    keys += kLanes * size;
    values += kLanes * size;
  }
  for (int i = 0; i < count; ++i) put_key(place + i, keys + i * size);
  put_values(place, count, values);
}

const float* Columns::put_block(const char* keys, const char* values) {
  if (!lies_ready()) {
    put_all(0, kBlock, keys, values);
    return values_.data();
  }
  for (int i = 0; i < kBlock; i += kLanes) put_keys(i, at(keys, *type_, i * dim_));
  return reinterpret_cast<const float*>(values);
}

void Columns::put_keys(int64_t place, const char* keys) {
  const float* group = reinterpret_cast<const float*>(keys);
  if (!lies_ready()) {
    for (int i = 0; i < kLanes; ++i)
      type_->widen(at(keys, *type_, i * dim_), &group_[i * stride_], dim_);
    group = group_.data();
  }
  float* to = keys_of(place);
  for (int i = 0; i < stride_; i += kLanes) transpose(group + i, stride_, to + i * kBlock, kBlock);
}

}  // namespace rows
