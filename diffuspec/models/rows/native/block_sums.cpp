#include "block_sums.h"

#include <algorithm>
#include <cstring>

#include "columns.h"
#include "vectors.h"

namespace rows {
namespace {

static_assert(kBlock == 4 * kLanes);
constexpr int kTile = 4;  // queries that share what is read of a block

// Which of a block's columns are seen: from kSeen[kBlock - n] on, not the first n; from
// kSeen[2 * kBlock - n] on, the first n alone.
const std::vector<int32_t> kSeen = [] {
  std::vector<int32_t> seen(3 * kBlock, 0);
  std::fill_n(&seen[kBlock], kBlock, -1);
  return seen;
}();

// The numbers where all bits of `seen` are set, -infinity where none is, even for NaN.
INLINE Floats where_seen(Floats numbers, const int32_t* from, const int32_t* until) {
  Ints bits, first, last;
  std::memcpy(&bits, &numbers, sizeof bits);
  std::memcpy(&first, from, sizeof first);
  std::memcpy(&last, until, sizeof last);
  const Ints seen = first & last;
  bits = (bits & seen) | (static_cast<int32_t>(0xff800000) & ~seen);
  std::memcpy(&numbers, &bits, sizeof bits);
  return numbers;
}

// Adds V vectors of the values of columns from `first` to before `end`, weighted, to the outputs of N
// queries.
template <int N, int V>
INLINE void add_values(
    const float weights[][kBlock], const float shrink[], const float* values, int first, int end,
    float* outputs, int stride) {
  Floats sums[N][V];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[i][v] = load(outputs + i * stride + v * kLanes) * shrink[i];
  values += int64_t{first} * stride;
  for (int64_t column = first; column < end; ++column, values += stride)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Floats value = load(values + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) sums[i][v] += weights[i][column] * value;
    }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(outputs + i * stride + v * kLanes, sums[i][v]);
}

// Does so for all vectors of the values.
template <int N>
INLINE void add_all_values(
    const float weights[][kBlock], const float shrink[], const float* values, int first, int end,
    float* outputs, int stride) {
  int left = stride / kLanes;
  for (; left >= 4; left -= 4, outputs += 4 * kLanes, values += 4 * kLanes)
    add_values<N, 4>(weights, shrink, values, first, end, outputs, stride);
  for (; left >= 2; left -= 2, outputs += 2 * kLanes, values += 2 * kLanes)
    add_values<N, 2>(weights, shrink, values, first, end, outputs, stride);
  if (left) add_values<N, 1>(weights, shrink, values, first, end, outputs, stride);
}

// Adds the first V vectors of a block's columns to the sums of N queries, which see no others.
template <int N, int V>
INLINE void add_vectors(
    BlockSums& sums, int query, const float* keys, const float* values, float scaling) {
  const int dim = sums.dim, stride = sums.stride;
  const float* queries = &sums.queries[static_cast<size_t>(query) * stride];
  const int64_t next = int64_t{dim} * kLanes;  // vector's keys
  Floats scores[N][V] = {};
  for (const float *key_at = keys, *end = keys + next; key_at != end; key_at += kLanes, ++queries)
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      const Floats key = load(key_at + j * next);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) scores[i][j] += queries[i * stride] * key;
    }
  float weights[N][kBlock], shrink[N];
  int first = kBlock, shared = kBlock;  // columns that all queries see, but for windows, until `shared`
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const int begin = sums.first[query + i], end = sums.end[query + i];
    first = std::min(first, begin);
    shared = std::min(shared, end);
    Floats largest = Floats{} - kInfinity;
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      scores[i][j] = where_seen(
          scores[i][j] * scaling, &kSeen[kBlock + j * kLanes - begin],
          &kSeen[2 * kBlock + j * kLanes - end]);
      largest = larger(scores[i][j], largest);
    }
    const float before = sums.highest[query + i];
    const float highest = std::max(before, largest_of(largest));
    const float offset = highest == -kInfinity ? 0.f : highest;
    Floats total = {};
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      const Floats weight = exponential(scores[i][j] - offset);
      store(&weights[i][j * kLanes], weight);
      total += weight;
    }
    shrink[i] = exponential(Floats{} + (before - offset))[0];
    sums.highest[query + i] = highest;
    sums.totals[query + i] = sums.totals[query + i] * shrink[i] + sum_of(total);
  }
  float* outputs = &sums.outputs[static_cast<size_t>(query) * stride];
  shared = std::max(first, shared);
  add_all_values<N>(weights, shrink, values, first, shared, outputs, stride);
  const float same = 1.f;
  for (int i = 0; i < N; ++i)  // a column that a query does not see must not show, even if it is NaN
    if (const int end = sums.end[query + i]; end > shared)
      add_all_values<1>(&weights[i], &same, values, shared, end, outputs + i * stride, stride);
}

// Adds a block's columns to the sums of N queries.
template <int N>
INLINE void add_block(
    BlockSums& sums, int query, const float* keys, const float* values, float scaling) {
  const int num_seen = *std::max_element(&sums.end[query], &sums.end[query] + N);
  if (num_seen <= kLanes) add_vectors<N, 1>(sums, query, keys, values, scaling);
  else if (num_seen <= 2 * kLanes) add_vectors<N, 2>(sums, query, keys, values, scaling);
  else if (num_seen <= 3 * kLanes) add_vectors<N, 3>(sums, query, keys, values, scaling);
  else add_vectors<N, 4>(sums, query, keys, values, scaling);
}

FOR_EVERY_CPU void add_block_to(
    BlockSums& sums, int query, int count, const float* keys, const float* values, float scaling) {
  for (; count >= kTile; count -= kTile, query += kTile)
    add_block<kTile>(sums, query, keys, values, scaling);
  if (count == 3) add_block<3>(sums, query, keys, values, scaling);
  if (count == 2) add_block<2>(sums, query, keys, values, scaling);
  if (count == 1) add_block<1>(sums, query, keys, values, scaling);
}

}  // namespace

void BlockSums::reset(int count, int width) {
  dim = width;
  stride = padded(dim);
  queries.assign(static_cast<size_t>(count) * stride, 0.f);
  outputs.assign(queries.size(), 0.f);
  highest.assign(count, -kInfinity);
  totals.assign(count, 0.f);
  first.resize(count);
  end.resize(count);
}

void BlockSums::add(int query, int count, const float* keys, const float* values, float scaling) {
  add_block_to(*this, query, count, keys, values, scaling);
}

}  // namespace rows
