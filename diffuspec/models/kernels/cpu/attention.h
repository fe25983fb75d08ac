// Attention of rows over the columns of a cache.
//
// Row r sees all columns before `base`, then those that it lists, which stand for it at base,
// base + 1, and so on: the branches of a draft tree take turns at these places. Columns are taken in
// blocks of kBlock, counted from column 0, with a running softmax.

#pragma once

#include <algorithm>

#include "numbers.h"

namespace kernels {

constexpr int kBlock = 64;  // columns that are taken together

struct Lists {
  const int32_t* order;  // in which rows are taken: those that list the same columns together
  const int32_t *starts, *counts, *columns;  // row r lists columns[starts[r]], ..., counts[r] of them
  const int32_t* positions;                  // of the rows, for windows

  // Whether the list of the row at a place of the order begins with that of the row before it.
  bool goes_on(int place) const {
    const int before = order[place - 1], row = order[place];
    const int32_t* list = columns + starts[before];
    return counts[row] >= counts[before] &&
           std::equal(list, list + counts[before], columns + starts[row]);
  }
};

struct Attention {
  const void *queries, *new_keys, *new_values;
  void *keys, *values, *outputs;
  int64_t query_head_stride, query_row_stride, new_head_stride, new_row_stride, cache_head_stride;
  int num_rows, num_heads, num_kv_heads, dim, start, base;
  Lists lists;
  float scaling;
  int window;  // 0: none
  bool has_transposed_keys;  // in the cache, in float32: in blocks of kLanes columns, [dim, kLanes] each
};

// Writes keys and values of all calls' rows into their caches, then their attention into the outputs.
// They are of one model: calls differ in their rows and caches alone.
void attend(const Type& type, const Attention* calls, int num_calls, int num_threads);

}  // namespace kernels
