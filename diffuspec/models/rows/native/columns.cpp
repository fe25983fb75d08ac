#include "columns.h"

#include <algorithm>

namespace rows {
namespace {

// Writes the transpose of 16 x 16 numbers.
FOR_EVERY_CPU void transpose(const float* from, int from_stride, float* to, int to_stride) {
  Floats rows[kLanes], turned[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_stride);
  // Four times: interleave each row of the first half with its fellow of the second half.
  const Ints low = kLane / 2 + kLane % 2 * kLanes, high = low + kLanes / 2;
  for (int time = 0; time < 4; ++time) {
    for (int i = 0; i < kLanes / 2; ++i) {
      turned[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      turned[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
    std::copy(turned, turned + kLanes, rows);
  }
  for (int i = 0; i < kLanes; ++i) store(to + i * to_stride, rows[i]);
}

}  // namespace

void Columns::put(int64_t place, const char* key, const char* value) {
  put_value(place, value);
  type_.widen(key, group_.get(), dim_);
  float* keys = keys_of(place);
  for (int i = 0; i < dim_; ++i) keys[i * kBlock] = group_[i];
}

void Columns::put_all(int64_t place, int count, const char* keys, const char* values) {
  const int64_t size = dim_ * type_.size;
  for (; count >= kLanes; count -= kLanes, place += kLanes) {
    put_keys(place, keys);
    for (int i = 0; i < kLanes; ++i) put_value(place + i, values + i * size);
    keys += kLanes * size;
    values += kLanes * size;
  }
  for (int i = 0; i < count; ++i) put(place + i, keys + i * size, values + i * size);
}

const float* Columns::put_block(const char* keys, const char* values) {
  if (!lies_ready()) {
    put_all(0, kBlock, keys, values);
    return values_.get();
  }
  for (int i = 0; i < kBlock; i += kLanes) put_keys(i, at(keys, type_, i * dim_));
  return reinterpret_cast<const float*>(values);
}

void Columns::put_keys(int64_t place, const char* keys) {
  const float* group = reinterpret_cast<const float*>(keys);
  if (!lies_ready()) {
    for (int i = 0; i < kLanes; ++i)
      type_.widen(at(keys, type_, i * dim_), &group_[i * stride_], dim_);
    group = group_.get();
  }
  float* to = keys_of(place);
  for (int i = 0; i < stride_; i += kLanes) transpose(group + i, stride_, to + i * kBlock, kBlock);
}

}  // namespace rows
