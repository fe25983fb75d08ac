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
    const int super = group / part_.ratio, number = super % kSupers;
    if (number == 0 && group % part_.ratio == 0) {
      widen(part_.supers, super, supers_);
      if (part_.super_offsets) widen(part_.super_offsets, super, super_offsets_);
    }
    scales = multiplied(supers_ + number * kBlock, part_.codes, group, scales_);
    if (part_.super_offsets)
      offsets = multiplied(super_offsets_ + number * kBlock, part_.offset_codes, group, offsets_);
    else if (part_.zeros)
      for (int i = 0; i < kBlock; ++i)
        offsets_[i] = scales[i] * -part_.zeros[(place_ + group) * kBlock + i];
  }

  // Computes the offsets of a group without stored offsets.
  INLINE void complete_offsets() {
    if (has_offsets()) return;
    for (int i = 0; i < kBlock; ++i) offsets_[i] = scales[i] * -part_.zero;
  }

  const float* scales = nullptr;  // [kBlock]
  const float* offsets = offsets_;

 private:
  static constexpr int kSupers = 2;  // supers widened together

  INLINE void widen(const uint8_t* from, int super, float* to) {
    const Type& type = kTypes[part_.scale_type];
    const int count = std::min(kSupers, num_ / part_.ratio - super) * kBlock;
    type.widen(from + (place_ / part_.ratio + super) * kBlock * type.size, to, count);
  }

  // Returns the shared numbers, multiplied by the groups' codes if there are any.
  INLINE const float* multiplied(const float* supers, const int8_t* codes, int group, float* to) const {
    if (!codes) return supers;
    codes += (place_ + group) * kBlock;
    for (int i = 0; i < kBlock; ++i) to[i] = supers[i] * codes[i];
    return to;
  }

  const Part& part_;
  const int num_;
  const int64_t words_, place_;
  alignas(64) float supers_[kSupers * kBlock], super_offsets_[kSupers * kBlock];
  alignas(64) float scales_[kBlock], offsets_[kBlock];
};

}  // namespace kernels
