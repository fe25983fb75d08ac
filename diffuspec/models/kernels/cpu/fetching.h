// Prefetching of weights into the second-level cache. On some processors this is faster, on others
// slower: see `trials.h`.

#pragma once

#include <cstdint>

#include "vectors.h"

namespace kernels {

// A range of memory that is prefetched in equal shares, one in each step of a computation. A
// processor has room for only a few outstanding fetches: many at once would stall it, but an even
// stream overlaps with computing.
class Ahead {
 public:
  Ahead() = default;  // an empty range

  // `num_bytes` from `first` on, for `num_steps` steps; an empty range for none.
  Ahead(const void* first, int64_t num_bytes, int64_t num_steps)
      : next_(static_cast<const char*>(first)),
        share_(num_steps > 0 ? int((num_bytes + num_steps - 1) / num_steps) : 0) {}

  // Prefetches the next share.
  INLINE void fetch() {
    for (int byte = 0; byte < share_; byte += kLine) __builtin_prefetch(next_ + byte, 0, kSecondLevel);
    next_ += share_;
  }

 private:
  static constexpr int kLine = 64, kSecondLevel = 2;
  const char* next_ = nullptr;
  int share_ = 0;
};

}  // namespace kernels
