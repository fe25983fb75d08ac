// The running softmax of attention.

#pragma once

#include <cstdint>
#include <vector>

#include "numbers.h"

namespace kernels {

// Keys and values to prefetch, `num_bytes` of each; 0: none.
struct Next {
  const char *keys = nullptr, *values = nullptr;
  int64_t num_bytes = 0;
};

// For some queries: sums of weighted values, [queries, padded dim], each query's highest score and
// the sum of its weights.
struct BlockSums {
  void reset(int count, int width);  // count and width of the queries

  // Adds a block of columns, in the layout of `Columns`, to the sums of `count` queries from
  // `query` on. Meanwhile `next` is prefetched.
  void add(
      int query, int count, const float* keys, const float* values, float scaling, const Next& next);

  int dim = 0, stride = 0;
  Numbers queries, outputs, highest, totals;
  std::vector<int> first, end;  // the columns of the current block that each query sees
};

}  // namespace kernels
