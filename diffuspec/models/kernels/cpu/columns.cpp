#include "columns.h"

#include <algorithm>

#include "registers.h"

namespace kernels {
namespace {

// Takes numbers of two rows alternately, starting with one of each.
template <int kFirst, int... kPlaces>
INLINE Floats alternating(Floats one, Floats other, std::integer_sequence<int, kPlaces...>) {
  return picked<(kFirst + kPlaces / 2 + kPlaces % 2 * kLanes)...>(one, other);
}

// Interleaves each row of the first half with the corresponding row of the second half.
INLINE void interleave(const Floats* rows, Floats* interleaved) {
  constexpr std::make_integer_sequence<int, kLanes> places;
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) {
    const Floats one = rows[i], other = rows[i + kLanes / 2];
    interleaved[2 * i] = alternating<0>(one, other, places);
    interleaved[2 * i + 1] = alternating<kLanes / 2>(one, other, places);
  }
}

// Writes the transpose of 16 x 16 numbers.
INLINE void transpose(const float* from, int from_stride, float* to, int to_stride) {
  Floats rows[kLanes], interleaved[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_stride);
  interleave(rows, interleaved);
  interleave(interleaved, rows);
  interleave(rows, interleaved);
  interleave(interleaved, rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * to_stride, rows[i]);
}

}  // namespace

void Columns::reset(const Type& type, int num_blocks, int dim) {
  type_ = &type;
  dim_ = dim;
  stride_ = padded(dim);
  size_ = int64_t{kBlock} * stride_;
  transposed_.resize(num_blocks * size_);  // including the padding of the last columns
  group_.resize(kLanes * stride_);
  if (!lies_ready()) widened_.resize(num_blocks * size_);
}

void Columns::put_keys(int64_t place, int count, const char* keys) {
  keys_ = transposed_.data();
  for (int i = 0; i < count; i += kLanes)
    transpose_keys(place + i, std::min(kLanes, count - i), at(keys, *type_, i * dim_));
}

void Columns::put_transposed_keys(int64_t place, int count, const char* keys) {
  if (type_ == &kTypes[kFloat32]) {
    keys_ = reinterpret_cast<const float*>(keys) - place * dim_;
    return;
  }
  keys_ = transposed_.data();
  type_->widen(keys, &transposed_[place * dim_], padded(count) * dim_);
}

void Columns::put_values(int64_t place, int count, const char* values) {
  if (lies_ready()) {
    values_ = reinterpret_cast<const float*>(values) - place * stride_;
    return;
  }
  values_ = widened_.data();
  widen(values, count, &widened_[place * stride_]);
}

void Columns::widen(const char* rows, int count, float* to) const {
  if (stride_ == dim_) return type_->widen(rows, to, count * dim_);
  for (int i = 0; i < count; ++i)
    type_->widen(at(rows, *type_, i * dim_), to + i * stride_, dim_);
}

void Columns::transpose_keys(int64_t place, int count, const char* keys) {
  const float* group = reinterpret_cast<const float*>(keys);
  if (!lies_ready() || count < kLanes) {
    widen(keys, count, group_.data());
    group = group_.data();
  }
  float* to = &transposed_[place * dim_];
  const int stride = stride_;
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < stride; i += kLanes) transpose(group + i, stride, to + i * kLanes, kLanes);
  });
}

}  // namespace kernels
