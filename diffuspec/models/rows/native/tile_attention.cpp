#include "tile_attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tiles.h"
#include "vectors.h"

namespace rows {

#if HAS_TILES

namespace {

constexpr int kSize = 2;    // bytes of a number
constexpr int kBlock = 64;  // columns
constexpr int kPairs = 32;  // numbers of a line

// Sixteen queries, one in each lane, and their running softmax.
struct alignas(kLine) Queries {
  explicit Queries(int dim) : tiles(dim / kPairs * kTileRows), outputs(dim / kLanes * kTileRows) {
    std::fill_n(highest, kLanes, -kInfinity);
  }

  std::vector<Line> tiles;    // as the second factor: [dim / 32, 16 pairs of numbers]
  std::vector<Line> outputs;  // [dim / 16, 16 queries], float32
  alignas(kLine) float highest[kLanes];
  alignas(kLine) float totals[kLanes] = {};
  alignas(kLine) int32_t ends[kLanes] = {};  // how many columns of the next block a query sees
};

// Turns lines of 16 pairs of numbers into lines of one pair of each.
ON_TILES_INLINE void transpose(__m512i lines[kTileRows]) {
  __m512i turned[kTileRows];
  for (int half = kTileRows / 2; half; half /= 2) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int i = 0; i < kTileRows / 2; ++i) {
      turned[2 * i] = _mm512_permutex2var_epi32(lines[i], low, lines[i + kTileRows / 2]);
      turned[2 * i + 1] = _mm512_permutex2var_epi32(lines[i], high, lines[i + kTileRows / 2]);
    }
    std::copy(turned, turned + kTileRows, lines);
  }
}

// Interleaves pairs of rows of a block's values, [kBlock, dim], from pair `first` to before `end`:
// the second factor of a product, [dim / 16, kBlock / 32, 16 pairs of columns].
ON_TILES void pair_up(const char* values, int dim, int first, int end, Line* to) {
  for (int pair = first; pair < end; ++pair)
    for (int part = 0; part < dim / kLanes; ++part) {
      const char* from = values + (int64_t{2} * pair * dim + part * kLanes) * kSize;
      const auto* even = reinterpret_cast<const __m256i*>(from);
      const auto* odd = reinterpret_cast<const __m256i*>(from + dim * kSize);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(even));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(odd));
      const int half = part * kBlock / kPairs + pair / kTileRows;
      _mm512_store_si512(
          &to[half * kTileRows + pair % kTileRows],
          _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

// Computes the scores of 16 queries for a block: line c has column c's.
ON_TILES_INLINE void score(const Queries& queries, const char* keys, int dim, Line* scores) {
  settle();
  for (int tile = 0; tile < kBlock / kTileRows; ++tile) {
    _tile_zero(0);
    for (int part = 0; part < dim / kPairs; ++part) {
      _tile_loadd(4, keys + (int64_t{tile} * kTileRows * dim + part * kPairs) * kSize, dim * kSize);
      _tile_loadd(6, &queries.tiles[part * kTileRows], kLine);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, scores + tile * kTileRows, kLine);
  }
}

// 2^x, to a hundredth of what bfloat16 resolves; exactly 1 for 0.
ON_TILES_INLINE __m512 power_of_two(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
  const __m512 rest = _mm512_sub_ps(x, whole);  // Taylor's series of 2^rest
  __m512 sum = _mm512_set1_ps(0.0096181291f);
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.0555041087f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.2402265070f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.6931471806f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(sum, whole);
}

// Turns the scores of a block into weights, rounded, in the same place: as the first factor,
// [kBlock / 32, 16 queries, 32 columns]. Returns what the sums before are multiplied by.
ON_TILES_INLINE __m512 weigh(Queries& queries, float scaling, Line* scores) {
  const __m512i ends = _mm512_load_si512(queries.ends);
  const __m512 factor = _mm512_set1_ps(scaling * 1.44269504f);  // weights are powers of two
  const __m512 nothing = _mm512_set1_ps(-kInfinity), before = _mm512_load_ps(queries.highest);
  __m512 highest = before;
  for (int column = 0; column < kBlock; ++column) {
    const __mmask16 seen = _mm512_cmpgt_epi32_mask(ends, _mm512_set1_epi32(column));
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(&scores[column]), factor);
    const __m512 found = _mm512_mask_blend_ps(seen, nothing, scaled);
    highest = _mm512_max_ps(highest, found);
    _mm512_store_ps(&scores[column], found);
  }
  const __mmask16 is_empty = _mm512_cmp_ps_mask(highest, nothing, _CMP_EQ_OQ);
  const __m512 offset = _mm512_mask_blend_ps(is_empty, highest, _mm512_setzero_ps());
  __m512 total = _mm512_setzero_ps();
  __m512i lines[kTileRows];
  for (int part = 0; part < kBlock / kPairs; ++part) {
    for (int i = 0; i < kTileRows; ++i) {
      __m512i halves[2];
      for (int odd = 0; odd < 2; ++odd) {
        const __m512 scored = _mm512_load_ps(&scores[part * kPairs + 2 * i + odd]);
        const __mmask16 seen = _mm512_cmp_ps_mask(scored, nothing, _CMP_NEQ_UQ);
        const __m512 weight = power_of_two(_mm512_sub_ps(scored, offset));
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_mov_ps(seen, weight));
        halves[odd] = _mm512_cvtepu16_epi32(rounded);
        total = _mm512_add_ps(total, (__m512)_mm512_slli_epi32(halves[odd], 16));
      }
      lines[i] = _mm512_or_si512(halves[0], _mm512_slli_epi32(halves[1], 16));
    }
    transpose(lines);
    for (int i = 0; i < kTileRows; ++i)
      _mm512_store_si512(&scores[part * kTileRows + i], lines[i]);
  }
  const __mmask16 had_any = _mm512_cmp_ps_mask(before, nothing, _CMP_NEQ_UQ);
  const __m512 shrink =
      _mm512_maskz_mov_ps(had_any, power_of_two(_mm512_sub_ps(before, offset)));
  _mm512_store_ps(queries.highest, highest);
  _mm512_store_ps(
      queries.totals,
      _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(queries.totals), shrink), total));
  return shrink;
}

ON_TILES_INLINE void shrink_outputs(Queries& queries, __m512 shrink) {
  if (_mm512_cmp_ps_mask(shrink, _mm512_set1_ps(1.f), _CMP_EQ_OQ) == 0xffff) return;
  alignas(kLine) float factors[kLanes];
  _mm512_store_ps(factors, shrink);
  for (size_t i = 0; i < queries.outputs.size(); ++i) {
    Line* sums = &queries.outputs[i];
    const __m512 factor = _mm512_set1_ps(factors[i % kTileRows]);
    _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), factor));
  }
}

// Adds a block of columns to the sums of 16 queries.
ON_TILES void add_block(
    Queries& queries, const char* keys, const Line* values, int dim, float scaling) {
  Line scores[kBlock];
  score(queries, keys, dim, scores);
  shrink_outputs(queries, weigh(queries, scaling, scores));
  settle();
  for (int part = 0; part < dim / kLanes; ++part) {
    Line* sums = &queries.outputs[part * kTileRows];
    _tile_loadd(0, sums, kLine);
    for (int half = 0; half < kBlock / kPairs; ++half) {
      _tile_loadd(4, &scores[half * kTileRows], kLine);
      _tile_loadd(6, &values[(part * kBlock / kPairs + half) * kTileRows], kLine);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums, kLine);
  }
}

// The attention of the query heads that share one key head. Queries stand in the order in which the
// call takes its rows.
class HeadAttention {
 public:
  HeadAttention(const Attention& call, int kv_head)
      : call_(call), kv_head_(kv_head), group_(call.num_heads / call.num_kv_heads),
        width_(call.dim * kSize), num_queries_(call.num_rows * group_),
        keys_(static_cast<char*>(call.keys) + kv_head * call.cache_head_stride * kSize),
        values_(static_cast<char*>(call.values) + kv_head * call.cache_head_stride * kSize),
        paired_(kBlock / 2 * call.dim / kLanes),
        queries_((num_queries_ + kLanes - 1) / kLanes, Queries(call.dim)) {}

  ON_TILES void run() {
    shape_tiles(kTileRows);
    for (int row = 0; row < call_.num_rows; ++row) keep(row);
    for (size_t tile = 0; tile < queries_.size(); ++tile) read(tile);
    add_whole_blocks();
    add_listed_columns();
    _tile_release();
    for (int query = 0; query < num_queries_; ++query) write(query);
  }

 private:
  int row_of(int query) const { return call_.lists.order[query / group_]; }
  int head_of(int query) const { return kv_head_ * group_ + query % group_; }

  // Copies a row's key and value into the cache.
  void keep(int row) {
    const int64_t from = (kv_head_ * call_.new_head_stride + row * call_.new_row_stride) * kSize;
    const int64_t to = int64_t{call_.start + row} * width_;
    std::memcpy(keys_ + to, static_cast<const char*>(call_.new_keys) + from, width_);
    std::memcpy(values_ + to, static_cast<const char*>(call_.new_values) + from, width_);
  }

  ON_TILES void read(int tile) {
    const int first = tile * kLanes, count = std::min(kLanes, num_queries_ - first);
    for (int part = 0; part < call_.dim / kPairs; ++part) {
      __m512i lines[kTileRows] = {};
      for (int i = 0; i < count; ++i) {
        const int64_t from = row_of(first + i) * call_.query_row_stride +
                             head_of(first + i) * call_.query_head_stride + part * kPairs;
        lines[i] = _mm512_loadu_si512(static_cast<const char*>(call_.queries) + from * kSize);
      }
      transpose(lines);
      for (int i = 0; i < kTileRows; ++i)
        _mm512_store_si512(&queries_[tile].tiles[part * kTileRows + i], lines[i]);
    }
  }

  void add_whole_blocks() {  // which all rows see
    for (int query = 0; query < num_queries_; ++query) end_of(query) = kBlock;
    for (int block = 0; block < call_.base / kBlock; ++block) {
      const int64_t first = int64_t{block} * kBlock * width_;
      pair_up(values_ + first, call_.dim, 0, kBlock / 2, paired_.data());
      for (Queries& queries : queries_)
        add_block(queries, keys_ + first, paired_.data(), call_.dim, call_.scaling);
    }
  }

  // Rows whose lists begin with each other's go together: they see the same columns, as far as each
  // sees. In a chain these are all rows, in a tree those of a path.
  void add_listed_columns() {
    Tail tail(*this);
    for (int first = 0, end; first < call_.num_rows; first = end) {
      for (end = first + 1; end < call_.num_rows && call_.lists.goes_on(end); ++end) {}
      tail.list(call_.lists.order[end - 1]);
      for (int block = 0; block < tail.num_blocks(); ++block) {
        set_ends(first * group_, end * group_, tail.num_before() - block * kBlock);
        for (int i = first * group_ / kLanes; i <= (end * group_ - 1) / kLanes; ++i)
          add_block(queries_[i], tail.keys(block), tail.values(block), call_.dim, call_.scaling);
      }
    }
  }

  int32_t& end_of(int query) { return queries_[query / kLanes].ends[query % kLanes]; }

  // Lets queries from `first` to before `end` see the columns that they list, after `num_before`
  // columns of the block, and no others of their sixteens anything.
  void set_ends(int first, int end, int num_before) {
    const int last = std::min((end + kLanes - 1) / kLanes * kLanes, int(queries_.size()) * kLanes);
    for (int query = first / kLanes * kLanes; query < last; ++query) {
      const bool is_there = first <= query && query < end;
      const int seen = is_there ? num_before + call_.lists.counts[row_of(query)] : 0;
      end_of(query) = std::min(std::max(seen, 0), kBlock);
    }
  }

  // The columns behind the last whole block, and those of a list after them.
  class Tail {
   public:
    explicit Tail(const HeadAttention& head) : head_(head) {
      const Attention& call = head.call_;
      const int start = call.base / kBlock * kBlock;
      const int most = *std::max_element(call.lists.counts, call.lists.counts + call.num_rows);
      const int num_blocks = (call.base - start + most + kBlock - 1) / kBlock;
      keys_.resize(size_t(num_blocks) * kBlock * head.width_);
      values_.resize(keys_.size());
      paired_.resize(num_blocks * head.paired_.size());
      for (int column = start; column < call.base; ++column) put(column);
      num_before_ = num_columns_;
    }

    void list(int row) {
      const Attention& call = head_.call_;
      const int32_t* columns = call.lists.columns + call.lists.starts[row];
      const int count = call.lists.counts[row];
      const int num_same = std::mismatch(
          columns, columns + std::min<int>(count, listed_.size()), listed_.begin()).first - columns;
      const int old = num_columns_;
      num_columns_ = num_before_ + num_same;
      listed_.resize(num_same);
      for (int i = num_same; i < count; ++i) put(columns[i]);
      listed_.insert(listed_.end(), columns + num_same, columns + count);
      if (old > num_columns_)  // nobody sees them now: what they hold must not show
        std::memset(
            &values_[size_t(num_columns_) * head_.width_], 0,
            size_t(old - num_columns_) * head_.width_);
      pair(num_before_ + num_same, std::max(old, num_columns_));
    }

    int num_before() const { return num_before_; }
    int num_blocks() const { return (num_columns_ + kBlock - 1) / kBlock; }
    const char* keys(int block) const { return &keys_[size_t(block) * kBlock * head_.width_]; }
    const Line* values(int block) const { return &paired_[block * head_.paired_.size()]; }

   private:
    void put(int column) {
      const size_t to = size_t(num_columns_++) * head_.width_;
      std::memcpy(&keys_[to], head_.keys_ + int64_t{column} * head_.width_, head_.width_);
      std::memcpy(&values_[to], head_.values_ + int64_t{column} * head_.width_, head_.width_);
    }

    // Pairs up the values from column `first` of the tail to before `end`, at first all of them.
    void pair(int first, int end) {
      first = is_paired_ ? first : 0;
      is_paired_ = true;
      for (int block = first / kBlock; block * kBlock < end; ++block)
        pair_up(
            &values_[size_t(block) * kBlock * head_.width_], head_.call_.dim,
            std::max(first - block * kBlock, 0) / 2,
            std::min(end - block * kBlock + 1, kBlock) / 2, &paired_[block * head_.paired_.size()]);
    }

    const HeadAttention& head_;
    std::vector<char> keys_, values_;
    std::vector<Line> paired_;
    std::vector<int32_t> listed_;
    int num_before_ = 0, num_columns_ = 0;
    bool is_paired_ = false;
  };

  ON_TILES void write(int query) {
    const Queries& queries = queries_[query / kLanes];
    const int lane = query % kLanes;
    const __m512 scale = _mm512_set1_ps(1.f / queries.totals[lane]);
    const int64_t head = int64_t{row_of(query)} * call_.num_heads + head_of(query);
    char* outputs = static_cast<char*>(call_.outputs) + head * width_;
    for (int part = 0; part < call_.dim / kLanes; ++part) {
      const Line* sums = &queries.outputs[part * kTileRows + lane];
      const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_load_ps(sums), scale));
      std::memcpy(outputs + part * kLanes * kSize, &rounded, sizeof rounded);
    }
  }

  const Attention& call_;
  const int kv_head_, group_, width_, num_queries_;  // width_: bytes of a key
  char *keys_, *values_;                             // of this head
  std::vector<Line> paired_;                         // values of a block
  std::vector<Queries> queries_;
};

}  // namespace

bool can_attend_by_tiles(const Attention& call) {
  return has_tiles() && call.dim % kPairs == 0 && !call.window;
}

void attend_by_tiles(const Attention& call, int kv_head) { HeadAttention(call, kv_head).run(); }

#else

bool can_attend_by_tiles(const Attention&) { return false; }
void attend_by_tiles(const Attention&, int) {}

#endif

}  // namespace rows
