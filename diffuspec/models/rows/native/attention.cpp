#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "columns.h"
#include "tile_attention.h"
#include "vectors.h"

namespace rows {
namespace {

constexpr int kVectors = kBlock / kLanes;
constexpr int kTile = 4;  // queries that share what is read of a block

// The running softmax of some queries: sums of weighted values, [queries, padded dim], each query's
// highest score and the sum of its weights.
struct Sums {
  Sums(int count, int dim)
      : stride(padded(dim)), queries(static_cast<size_t>(count) * stride),
        outputs(static_cast<size_t>(count) * stride),
        highest(count, -kInfinity), totals(count), first(count) {}

  int stride;
  Numbers queries, outputs, highest, totals;
  std::vector<int> first;  // each query's first column of the block that is added
};

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

// Adds V vectors of the values of columns from `first` on, weighted, to the outputs of N queries.
template <int N, int V>
INLINE void add_values(
    const float weights[][kBlock], const float shrink[], const float* values, int first, int end,
    float* outputs, int stride) {
  Floats sums[N][V];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[i][v] = load(outputs + i * stride + v * kLanes) * shrink[i];
  for (int column = first; column < end; ++column)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Floats value = load(values + column * stride + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) sums[i][v] += weights[i][column] * value;
    }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(outputs + i * stride + v * kLanes, sums[i][v]);
}

// Adds a block's columns before `end` to the sums of N queries.
template <int N>
INLINE void add_block(
    Sums& sums, int query, int dim, const float* keys, const float* values, int end,
    float scaling) {
  const int stride = sums.stride;
  const float* queries = &sums.queries[static_cast<size_t>(query) * stride];
  Floats scores[N][kVectors] = {};
  for (int d = 0; d < dim; ++d)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Floats key = load(keys + d * kBlock + j * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) scores[i][j] += queries[i * stride + d] * key;
    }
  float weights[N][kBlock], shrink[N];
  int first = kBlock;
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const int mine = sums.first[query + i];
    first = std::min(first, mine);
    Floats largest = Floats{} - kInfinity;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      scores[i][j] = where_seen(
          scores[i][j] * scaling, &kSeen[kBlock + j * kLanes - mine],
          &kSeen[2 * kBlock + j * kLanes - end]);
      largest = larger(scores[i][j], largest);
    }
    const float before = sums.highest[query + i];
    const float highest = std::max(before, largest_of(largest));
    const float offset = highest == -kInfinity ? 0.f : highest;
    Floats total = {};
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Floats weight = exponential(scores[i][j] - offset);
      store(&weights[i][j * kLanes], weight);
      total += weight;
    }
    shrink[i] = exponential(Floats{} + (before - offset))[0];
    sums.highest[query + i] = highest;
    sums.totals[query + i] = sums.totals[query + i] * shrink[i] + sum_of(total);
  }
  float* outputs = &sums.outputs[static_cast<size_t>(query) * stride];
  int left = stride / kLanes;
  for (; left >= 4; left -= 4, outputs += 4 * kLanes, values += 4 * kLanes)
    add_values<N, 4>(weights, shrink, values, first, end, outputs, stride);
  for (; left; --left, outputs += kLanes, values += kLanes)
    add_values<N, 1>(weights, shrink, values, first, end, outputs, stride);
}

FOR_EVERY_CPU void add_block_to(
    Sums& sums, int query, int count, int dim, const float* keys, const float* values, int end,
    float scaling) {
  for (; count >= kTile; count -= kTile, query += kTile)
    add_block<kTile>(sums, query, dim, keys, values, end, scaling);
  if (count == 3) add_block<3>(sums, query, dim, keys, values, end, scaling);
  if (count == 2) add_block<2>(sums, query, dim, keys, values, end, scaling);
  if (count == 1) add_block<1>(sums, query, dim, keys, values, end, scaling);
}

// The attention of the query heads that share one key head.
class HeadAttention {
 public:
  HeadAttention(const Type& type, const Attention& call, int kv_head)
      : type_(type), call_(call), kv_head_(kv_head), group_(call.num_heads / call.num_kv_heads),
        keys_(at(call.keys, type, kv_head * call.cache_head_stride)),
        values_(at(call.values, type, kv_head * call.cache_head_stride)),
        sums_(call.num_rows * group_, call.dim) {}

  void run() {
    for (int row = 0; row < call_.num_rows; ++row) read(row);
    add_whole_blocks();
    add_listed_columns();
    for (int row = 0; row < call_.num_rows; ++row) write(row);
  }

 private:
  char* key(int64_t row) const { return at(keys_, type_, row * call_.dim); }
  char* value(int64_t row) const { return at(values_, type_, row * call_.dim); }
  int first_column(int row) const {
    return call_.window ? std::max(0, call_.lists.positions[row] + 1 - call_.window) : 0;
  }

  void read(int row) {
    const int64_t from = kv_head_ * call_.new_head_stride + row * call_.new_row_stride;
    std::memcpy(key(call_.start + row), at(call_.new_keys, type_, from), call_.dim * type_.size);
    std::memcpy(value(call_.start + row), at(call_.new_values, type_, from), call_.dim * type_.size);
    for (int i = 0; i < group_; ++i) {
      const int64_t head = kv_head_ * group_ + i;
      const char* query = at(
          call_.queries, type_, row * call_.query_row_stride + head * call_.query_head_stride);
      type_.widen(query, &sums_.queries[static_cast<size_t>(row * group_ + i) * sums_.stride], call_.dim);
    }
  }

  void add_whole_blocks() {  // all rows see them, but for windows
    Columns block(type_, 1, call_.dim);
    int lowest = call_.base;
    for (int row = 0; row < call_.num_rows; ++row) lowest = std::min(lowest, first_column(row));
    for (int b = lowest / kBlock; b < call_.base / kBlock; ++b) {
      const float* values = block.put_block(key(b * kBlock), value(b * kBlock));
      for (int row = 0; row < call_.num_rows; ++row) start_at(row, b);
      add(0, call_.num_rows, block.keys(0), values, kBlock);
    }
  }

  void add_listed_columns() {
    const int start = call_.base / kBlock * kBlock, num_before = call_.base - start;
    int most = 0;
    for (int row = 0; row < call_.num_rows; ++row) most = std::max(most, call_.lists.counts[row]);
    Columns tail(type_, (num_before + most + kBlock - 1) / kBlock, call_.dim);
    tail.put_all(0, num_before, key(start), value(start));
    std::vector<int32_t> there;  // the listed columns that stand in the tail
    for (int place = 0; place < call_.num_rows; ++place) {
      const int row = call_.lists.order[place], size = call_.lists.counts[row];
      const int32_t* mine = call_.lists.columns + call_.lists.starts[row];
      const int32_t* end = mine + std::min<size_t>(size, there.size());
      for (int i = std::mismatch(mine, end, there.begin()).first - mine; i < size; ++i) {
        tail.put(num_before + i, key(mine[i]), value(mine[i]));
        there.resize(i);
        there.push_back(mine[i]);
      }
      for (int b = 0, left = num_before + size; left > 0; ++b, left -= kBlock) {
        start_at(row, start / kBlock + b);
        if (sums_.first[row * group_] < std::min(left, kBlock))
          add(row, 1, tail.keys(b), tail.values(b), std::min(left, kBlock));
      }
    }
  }

  void start_at(int row, int block) {
    const int first = first_column(row) - block * kBlock;
    std::fill_n(&sums_.first[row * group_], group_, std::min(std::max(first, 0), kBlock));
  }

  void add(int row, int num_rows, const float* keys, const float* values, int end) {
    add_block_to(
        sums_, row * group_, num_rows * group_, call_.dim, keys, values, end, call_.scaling);
  }

  void write(int row) {
    for (int i = 0; i < group_; ++i) {
      const int query = row * group_ + i;
      float* numbers = &sums_.outputs[static_cast<size_t>(query) * sums_.stride];
      const float scale = 1.f / sums_.totals[query];
      for (int d = 0; d < call_.dim; ++d) numbers[d] *= scale;
      const int64_t head = int64_t{row} * call_.num_heads + kv_head_ * group_ + i;
      type_.narrow(numbers, at(call_.outputs, type_, head * call_.dim), call_.dim);
    }
  }

  const Type& type_;
  const Attention& call_;
  const int kv_head_, group_;
  char *keys_, *values_;  // of this head
  Sums sums_;
};

constexpr int64_t kWorthAThread = 1 << 22;  // multiplications

}  // namespace

void attend(const Type& type, const Attention& call, int num_threads) {
  const int64_t num_products = int64_t{2} * call.num_rows * call.num_heads * call.dim *
                               (int64_t{call.base} + call.num_rows);
  num_threads = static_cast<int>(std::min<int64_t>(
      {num_threads, call.num_kv_heads, 1 + num_products / kWorthAThread}));
  const bool by_tiles = &type == &kTypes[kBfloat16] && can_attend_by_tiles(call);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
  for (int head = 0; head < call.num_kv_heads; ++head)
    if (by_tiles) attend_by_tiles(call, head);
    else HeadAttention(type, call, head).run();
}

}  // namespace rows
