// The scales of quantised weights, as products read them.

#pragma once

#include <algorithm>

#include "block_products.h"
#include "fetching.h"
#include "quantized_products.h"
#include "vectors.h"

namespace kernels {

constexpr int kAhead = 8192;  // distance in bytes of prefetching

// The scales of a block of a part's outputs, group by group.
class Groups {
 public:
  Groups(const Part& part, int num_inputs, int block)
      : part_(part),
        num_(num_inputs / part.group),
        words_(part.group * part.bits / 32 * kBlock),
        place_(int64_t{block} * num_) {}

  int count() const { return num_; }
  const int32_t* weights(int group) const { return part_.weights + (place_ + group) * words_; }
  int size() const { return part_.group; }

  // What to prefetch while a group is read in `num_parts` parts.
  Ahead ahead(int group, bool fetches, int num_parts) const {
    if (!fetches) return {};
    const char* here = reinterpret_cast<const char*>(weights(group));
    return {here + kAhead, words_ * 4, words_ / kBlock * num_parts};
  }

  bool has_offsets() const { return part_.super_offsets || part_.zeros; }

  // Reads the scales of the next group, and its offsets if there are any.
  INLINE void read_next(int group) {
    if (num_left_ == 0) {
      if (++number_ == kSupers) widen_next();
      num_left_ = part_.ratio;
    }
    --num_left_;
    scales = multiplied(supers_ + number_ * kBlock, part_.codes, group, scales_);
    if (part_.super_offsets)
      offsets = multiplied(super_offsets_ + number_ * kBlock, part_.offset_codes, group, offsets_);
    else if (part_.zeros)
      multiply(scales, part_.zeros, group, -1, offsets_);
  }

  // Computes the offsets of a group without stored offsets.
  INLINE void complete_offsets() {
    if (has_offsets()) return;
    for (int i = 0; i < kBlock; i += kLanes)
      store(offsets_ + i, load(scales + i) * float(-part_.zero));
  }

  const float* scales = nullptr;  // [kBlock]
  const float* offsets = offsets_;

 private:
  static constexpr int kSupers = 2;  // supers widened together

  void widen_next() {
    const Type& type = kTypes[part_.scale_type];
    const int64_t first = (place_ / part_.ratio + next_) * kBlock * type.size;
    const int count = std::min(kSupers, num_ / part_.ratio - next_) * kBlock;
    type.widen(part_.supers + first, supers_, count);
    if (part_.super_offsets) type.widen(part_.super_offsets + first, super_offsets_, count);
    number_ = 0;
    next_ += kSupers;
  }

  // Returns the shared numbers, multiplied by the groups' codes if there are any.
  INLINE const float* multiplied(const float* supers, const int8_t* codes, int group, float* to) const {
    if (!codes) return supers;
    multiply(supers, codes, group, 1, to);
    return to;
  }

  // Multiplies numbers by a group's integers with a sign. Whole vectors of kLanes are stored, since
  // a load of one that was stored in parts has to wait for them.
  INLINE void multiply(
      const float* numbers, const int8_t* integers, int group, int sign, float* to) const {
    typedef int8_t Bytes __attribute__((vector_size(kLanes)));
    integers += (place_ + group) * kBlock;
    for (int i = 0; i < kBlock; i += kLanes) {
      const Ints whole = sign * __builtin_convertvector(read<Bytes>(integers + i), Ints);
      store(to + i, load(numbers + i) * __builtin_convertvector(whole, Floats));
    }
  }

  const Part& part_;
  const int num_;
  const int64_t words_, place_;
  int number_ = kSupers - 1, num_left_ = 0;  // the super being read, and its groups not read yet
  int next_ = 0;                             // the first super not widened yet
  alignas(64) float supers_[kSupers * kBlock], super_offsets_[kSupers * kBlock];
  alignas(64) float scales_[kBlock], offsets_[kBlock];
};

}  // namespace kernels
