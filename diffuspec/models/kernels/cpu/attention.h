// Attention of rows over the columns of a cache.
//
// The cache consists of pages of kBlock rows. Those of a sequence are listed in their order: column c
// is row c % kBlock of pages[c / kBlock].
//
// Row r sees all columns before `base`, then those in its list, which for this row are at positions
// base, base + 1, and so on: the branches of a draft tree share these positions. Columns are
// processed in blocks of kBlock, counted from column 0, with a running softmax.

#pragma once

#include <algorithm>

#include "numbers.h"

namespace kernels {

constexpr int kBlock = 64;  // columns processed together

struct Lists {
  const int32_t* order;  // order of processing: rows with the same list are adjacent
  // row r lists columns[starts[r]], ...; counts[r] columns in all
  const int32_t *starts, *counts, *columns;
  const int32_t* positions;                  // positions of the rows, for windows

  // Whether the list of the row at a place begins with that of the row before it in the order.
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
  const int32_t* pages;  // the sequence's
  int64_t query_head_stride, query_row_stride, new_head_stride, new_row_stride;
  int64_t page_stride, cache_head_stride;
  int num_rows, num_heads, num_kv_heads, dim, start, base;
  Lists lists;
  float scaling;
  int window;  // 0: no window
  // whether keys of the cache are in blocks of kLanes columns, [dim, kLanes] each
  bool has_transposed_keys;

  // Index in the cache of the first number of a head's part of the page with a column.
  int64_t page_of(int64_t column, int kv_head) const {
    return pages[column / kBlock] * page_stride + kv_head * cache_head_stride;
  }
};

// Writes the keys and values of all calls' rows into their caches, then their attention into the
// outputs. All calls are for one model and differ only in rows and caches.
void attend(const Type& type, const Attention* calls, int num_calls, int num_threads);

}  // namespace kernels
