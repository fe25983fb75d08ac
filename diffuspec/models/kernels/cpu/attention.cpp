#include "attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "block_sums.h"
#include "columns.h"
#include "gathered.h"
#include "tile_attention.h"
#include "vectors.h"

namespace kernels {
namespace {

// The buffers of a thread, reused from one head to the next.
struct Memory {
  BlockSums sums;
  Columns columns;
  Gathered gathered;            // columns before `base` in its block, then the listed ones
  std::vector<int32_t> listed;  // the listed columns
};

// The attention of the query heads that share one key head. Queries are in the call's order of
// rows.
class HeadAttention {
 public:
  // Meanwhile the keys and values of the next head are prefetched.
  HeadAttention(
      const Type& type, const Attention& call, int kv_head, const Attention* next_call, int next_head,
      Memory& memory)
      : type_(type), call_(call), kv_head_(kv_head), group_(call.num_heads / call.num_kv_heads),
        sums_(memory.sums), columns_(memory.columns), gathered_(memory.gathered),
        listed_(memory.listed) {
    if (next_call) {
      next_keys_ = at(next_call->keys, type, next_call->page_of(0, next_head));
      next_values_ = at(next_call->values, type, next_call->page_of(0, next_head));
    }
  }

  void run() {
    sums_.reset(call_.num_rows * group_, call_.dim);
    for (int place = 0; place < call_.num_rows; ++place) read(place);
    add_whole_blocks();
    add_listed_columns();
    for (int place = 0; place < call_.num_rows; ++place) write(place);
  }

 private:
  char* key(int64_t row) const {
    return at(call_.keys, type_, call_.page_of(row, kv_head_) + row % kBlock * call_.dim);
  }
  char* value(int64_t row) const {
    return at(call_.values, type_, call_.page_of(row, kv_head_) + row % kBlock * call_.dim);
  }
  char* transposed_key(int64_t row) const {
    const int64_t place = transposed_place(row % kBlock, call_.dim);
    return at(call_.keys, type_, call_.page_of(row, kv_head_) + place);
  }
  int row_at(int place) const { return call_.lists.order[place]; }
  int first_column(int row) const {
    return call_.window ? std::max(0, call_.lists.positions[row] + 1 - call_.window) : 0;
  }

  // The columns after a block: this head's next ones, or the next head's first.
  Next after(int block) const {
    const int64_t size = int64_t{kBlock} * call_.dim * type_.size;
    const int64_t next = int64_t{kBlock} * (block + 1);
    if (block < call_.base / kBlock) return {key(next), value(next), size};
    if (next_keys_) return {next_keys_, next_values_, size};
    return {};
  }

  void read(int place) {
    for (int i = 0; i < group_; ++i) {
      const int64_t head = kv_head_ * group_ + i;
      const char* query = at(
          call_.queries, type_,
          row_at(place) * call_.query_row_stride + head * call_.query_head_stride);
      type_.widen(query, &sums_.queries[size_t(place * group_ + i) * sums_.stride], call_.dim);
    }
  }

  void add_whole_blocks() {  // all rows see them, except for windows
    columns_.reset(type_, 1, call_.dim);
    int lowest = call_.base;
    for (int row = 0; row < call_.num_rows; ++row) lowest = std::min(lowest, first_column(row));
    for (int b = lowest / kBlock; b < call_.base / kBlock; ++b) {
      put_page(b * kBlock, kBlock);
      for (int place = 0; place < call_.num_rows; ++place) see(place, b, kBlock);
      add(0, call_.num_rows, 0, after(b));
    }
  }

  // Makes columns from the first one of a page block 0.
  void put_page(int first, int count) {
    if (call_.has_transposed_keys) columns_.put_transposed_keys(0, count, transposed_key(first));
    else columns_.put_keys(0, count, key(first));
    columns_.put_values(0, count, value(first));
  }

  // Rows are processed together if one's list begins with the other's: in a chain all rows, in a
  // tree those of a path.
  void add_listed_columns() {
    const int start = call_.base / kBlock * kBlock, num_before = call_.base - start;
    int most = 0;
    for (int row = 0; row < call_.num_rows; ++row) most = std::max(most, call_.lists.counts[row]);
    columns_.reset(type_, divided_up(num_before + most, kBlock), call_.dim);
    listed_.clear();
    for (int first = 0, end; first < call_.num_rows; first = end) {
      end = end_of_path(first);
      const int row = row_at(end - 1), num_seen = num_before + call_.lists.counts[row];
      const bool is_chain = first == 0 && end == call_.num_rows && lists_next(row);
      if (!is_chain) {
        if (first == 0) gather_before(start, num_before, most);
        const int next = gather(row, num_before) / kLanes * kLanes;
        const size_t from = next * gathered_.size;
        const char* keys = &gathered_.keys[from];
        if (call_.has_transposed_keys) columns_.put_transposed_keys(next, num_seen - next, keys);
        else columns_.put_keys(next, num_seen - next, keys);
        columns_.put_values(next, num_seen - next, &gathered_.values[from]);
      }
      for (int b = 0; b * kBlock < num_seen; ++b) {
        if (is_chain) put_page(start + b * kBlock, std::min(num_seen - b * kBlock, kBlock));
        add_to_path(first, end, num_before, start / kBlock, b, is_chain ? 0 : b);
      }
    }
  }

  int end_of_path(int place) const {
    do ++place;
    while (place < call_.num_rows && call_.lists.goes_on(place));
    return place;
  }

  // Whether a row lists the columns that directly follow those before `base`.
  bool lists_next(int row) const {
    const int32_t* columns = call_.lists.columns + call_.lists.starts[row];
    for (int i = 0; i < call_.lists.counts[row]; ++i)
      if (columns[i] != call_.base + i) return false;
    return true;
  }

  void gather_before(int start, int num_before, int most) {
    gathered_.reset(type_, num_before + most, call_.dim);
    if (call_.has_transposed_keys) gathered_.put_transposed_keys(num_before, transposed_key(start));
    else gathered_.put_keys(0, num_before, key(start));
    gathered_.put_values(0, num_before, value(start));
  }

  // Gathers the columns that a row lists, except those already gathered. Returns the first changed
  // index, initially 0.
  int gather(int row, int num_before) {
    const int32_t* columns = call_.lists.columns + call_.lists.starts[row];
    const int32_t* end = columns + call_.lists.counts[row];
    const int32_t* most = columns + std::min<size_t>(end - columns, listed_.size());
    const int32_t* next = std::mismatch(columns, most, listed_.begin()).first;
    const bool is_first = listed_.empty();
    for (const int32_t* column = next; column < end; ++column) {
      const int place = num_before + static_cast<int>(column - columns);
      if (call_.has_transposed_keys) gathered_.put_transposed_key(place, transposed_key(*column));
      else gathered_.put_keys(place, 1, key(*column));
      gathered_.put_values(place, 1, value(*column));
    }
    listed_.assign(columns, end);
    return is_first ? 0 : num_before + (next - columns);
  }

  // Adds block b of the columns after the whole blocks, `block` of those at hand, to the rows of a
  // path that see any of it.
  void add_to_path(int first, int end, int num_before, int num_whole, int b, int block) {
    for (int place = first; place < end; ++place)
      see(place, num_whole + b, num_before + call_.lists.counts[row_at(place)] - b * kBlock);
    const auto sees = [&](int place) {
      return sums_.first[place * group_] < sums_.end[place * group_];
    };
    while (first < end && !sees(first)) ++first;  // their lists are shorter
    while (first < end && !sees(end - 1)) --end;  // their windows begin later
    add(first, end - first, block, first == 0 && b == 0 ? after(num_whole) : Next());
  }

  // Makes a block's columns before `end` visible to the row at a place.
  void see(int place, int block, int end) {
    const auto within = [](int column) { return std::min(std::max(column, 0), kBlock); };
    const int first = within(first_column(row_at(place)) - block * kBlock);
    std::fill_n(&sums_.first[place * group_], group_, first);
    std::fill_n(&sums_.end[place * group_], group_, within(end));
  }

  void add(int place, int num_rows, int block, const Next& next) {
    sums_.add(
        place * group_, num_rows * group_, columns_.keys(block), columns_.values(block),
        call_.scaling, next);
  }

  void write(int place) {
    for (int i = 0; i < group_; ++i) {
      const int query = place * group_ + i;
      float* numbers = &sums_.outputs[size_t(query) * sums_.stride];
      const float scale = 1.f / sums_.totals[query];
      for (int d = 0; d < call_.dim; ++d) numbers[d] *= scale;
      const int64_t head = int64_t{row_at(place)} * call_.num_heads + kv_head_ * group_ + i;
      type_.narrow(numbers, at(call_.outputs, type_, head * call_.dim), call_.dim);
    }
  }

  const Type& type_;
  const Attention& call_;
  const int kv_head_, group_;
  const char *next_keys_ = nullptr, *next_values_ = nullptr;  // the next head's
  BlockSums& sums_;
  Columns& columns_;
  Gathered& gathered_;
  std::vector<int32_t>& listed_;
};

// Copies the keys and values of rows for one head into the cache.
void keep(const Type& type, const Attention& call, int kv_head) {
  const size_t size = call.dim * type.size;
  for (int row = 0; row < call.num_rows; ++row) {
    const int64_t from = kv_head * call.new_head_stride + row * call.new_row_stride;
    const int64_t page = call.page_of(call.start + row, kv_head);
    const int64_t in_page = (call.start + row) % kBlock, to = page + in_page * call.dim;
    const char* key = at(call.new_keys, type, from);
    if (call.has_transposed_keys) {
      const int64_t place = page + transposed_place(in_page, call.dim);
      copy_apart(type, key, 1, at(call.keys, type, place), kLanes, call.dim);
    } else {
      std::memcpy(at(call.keys, type, to), key, size);
    }
    std::memcpy(at(call.values, type, to), at(call.new_values, type, from), size);
  }
}

constexpr int64_t kWorthAThread = 1 << 22;  // multiplications that are worth a thread

int64_t num_products(const Attention& call) {
  const int64_t num_columns = int64_t{call.base} + call.num_rows;
  return int64_t{2} * call.num_rows * call.num_heads * call.dim * num_columns;
}

}  // namespace

void attend(const Type& type, const Attention* calls, int num_calls, int num_threads) {
  if (!num_calls) return;
  int64_t work = 0;
  for (int i = 0; i < num_calls; ++i) work += num_products(calls[i]);
  const int num_heads = calls->num_kv_heads, num_tasks = num_calls * num_heads;
  num_threads = std::min<int64_t>({num_threads, num_tasks, 1 + work / kWorthAThread});
  const bool by_tiles = &type == &kTypes[kBfloat16] && !calls->has_transposed_keys &&
                        can_attend_by_tiles(*calls);
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
#pragma omp for
    // all copies come first: rows may see those of other calls
    for (int task = 0; task < num_tasks; ++task)
      keep(type, calls[task / num_heads], task % num_heads);
#pragma omp for schedule(dynamic)
    for (int task = 0; task < num_tasks; ++task) {
      thread_local Memory memory;
      const Attention& call = calls[task / num_heads];
      const int next = task + 1;
      const Attention* next_call = next < num_tasks ? &calls[next / num_heads] : nullptr;
      if (by_tiles) attend_by_tiles(call, task % num_heads);
      else HeadAttention(type, call, task % num_heads, next_call, next % num_heads, memory).run();
    }
  }
}

}  // namespace kernels
