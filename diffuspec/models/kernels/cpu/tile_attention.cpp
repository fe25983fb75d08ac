#include "tile_attention.h"

#include "level.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tile_sums.h"

namespace kernels {

#if HAS_TILES

namespace {

// The attention of the query heads that share one key head. Queries are in the call's order of
// rows.
class HeadAttention {
 public:
  HeadAttention(const Attention& call, int kv_head)
      : call_(call), kv_head_(kv_head), group_(call.num_heads / call.num_kv_heads),
        width_(call.dim * kSize), num_queries_(call.num_rows * group_),
        paired_(kBlock / 2 * call.dim / kLanes),
        queries_(divided_up(num_queries_, kLanes), QueryTile(call.dim)) {}

  ON_TILES void run() {
    shape_tiles(kTileRows);
    for (size_t tile = 0; tile < queries_.size(); ++tile) read(tile);
    add_whole_blocks();
    add_listed_columns();
    _tile_release();
    for (int query = 0; query < num_queries_; ++query) write(query);
  }

 private:
  const char* key(int column) const { return cached(call_.keys, column); }
  const char* value(int column) const { return cached(call_.values, column); }
  const char* cached(const void* numbers, int column) const {
    const int64_t place = call_.page_of(column, kv_head_) + column % kBlock * call_.dim;
    return static_cast<const char*>(numbers) + place * kSize;
  }
  int row_of(int query) const { return call_.lists.order[query / group_]; }
  int head_of(int query) const { return kv_head_ * group_ + query % group_; }

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

  void add_whole_blocks() {  // the blocks that all rows see
    for (int query = 0; query < num_queries_; ++query) end_of(query) = kBlock;
    for (int block = 0; block < call_.base / kBlock; ++block) {
      const int first = block * kBlock;
      pair_up(value(first), call_.dim, 0, kBlock / 2, paired_.data());
      for (QueryTile& queries : queries_)
        add_block(queries, key(first), paired_.data(), call_.dim, call_.scaling);
    }
  }

  // Rows are processed together if one's list begins with the other's: they see the same columns,
  // up to their own limits. In a chain these are all rows, in a tree those of a path.
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

  // Lets queries from `first` to before `end` see the columns in their lists, after `num_before`
  // columns of the block; the other queries of their tiles see nothing.
  void set_ends(int first, int end, int num_before) {
    const int last = std::min(padded(end), int(queries_.size()) * kLanes);
    for (int query = first / kLanes * kLanes; query < last; ++query) {
      const bool is_there = first <= query && query < end;
      const int seen = is_there ? num_before + call_.lists.counts[row_of(query)] : 0;
      end_of(query) = std::min(std::max(seen, 0), kBlock);
    }
  }

  // The columns after the last whole block, followed by those of a list.
  class Tail {
   public:
    explicit Tail(const HeadAttention& head) : head_(head) {
      const Attention& call = head.call_;
      const int start = call.base / kBlock * kBlock;
      const int most = *std::max_element(call.lists.counts, call.lists.counts + call.num_rows);
      const int num_blocks = divided_up(call.base - start + most, kBlock);
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
      if (old > num_columns_)  // no query sees them now, so their contents must have no effect
        std::memset(
            &values_[size_t(num_columns_) * head_.width_], 0,
            size_t(old - num_columns_) * head_.width_);
      pair(num_before_ + num_same, std::max(old, num_columns_));
    }

    int num_before() const { return num_before_; }
    int num_blocks() const { return divided_up(num_columns_, kBlock); }
    const char* keys(int block) const { return &keys_[size_t(block) * kBlock * head_.width_]; }
    const Line* values(int block) const { return &paired_[block * head_.paired_.size()]; }

   private:
    void put(int column) {
      const size_t to = size_t(num_columns_++) * head_.width_;
      std::memcpy(&keys_[to], head_.key(column), head_.width_);
      std::memcpy(&values_[to], head_.value(column), head_.width_);
    }

    // Pairs up the values from column `first` of the tail to before `end`; at first all of them.
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
    const QueryTile& queries = queries_[query / kLanes];
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
  std::vector<Line> paired_;                         // values of a block
  std::vector<QueryTile> queries_;
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

}  // namespace kernels
