// Operations over the rows of one forward on a CPU: norms, rotary positions, gated activations, and
// attention over the cache.
//
// A row's result does not depend, to the last bit, on the other rows: each goes through the same
// operations in the same order, wherever it stands. All is computed in float32, in vectors of
// kLanes. `operations.py` says what each function computes; its arguments are trusted here.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#define INLINE inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Compiled for three generations of processors; the loader takes the one for this machine.
#define FOR_EVERY_CPU \
  __attribute__((noinline, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_CPU
#endif

namespace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
using Numbers = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

INLINE Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

constexpr int padded(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

constexpr Ints kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Adds, or compares, neighbours at a distance of 8, 4, 2 and 1.
INLINE float sum_of(Floats value) {
  value += __builtin_shuffle(value, kLane ^ 8);
  value += __builtin_shuffle(value, kLane ^ 4);
  value += __builtin_shuffle(value, kLane ^ 2);
  value += __builtin_shuffle(value, kLane ^ 1);
  return value[0];
}

INLINE Floats larger(Floats one, Floats other) { return one > other ? one : other; }

INLINE Floats smaller(Floats one, Floats other) { return one < other ? one : other; }

INLINE float largest_of(Floats value) {
  value = larger(value, __builtin_shuffle(value, kLane ^ 8));
  value = larger(value, __builtin_shuffle(value, kLane ^ 4));
  value = larger(value, __builtin_shuffle(value, kLane ^ 2));
  value = larger(value, __builtin_shuffle(value, kLane ^ 1));
  return value[0];
}

// e^x with the polynomial of Cephes' expf; 0 below -87.7, and e^88 above 88.
INLINE Floats exponential(Floats x) {
  x = larger(Floats{} - 88.f, x);  // in this order, so that NaN stays NaN
  x = smaller(Floats{} + 88.f, x);
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number
  Floats whole = (x * 1.44269504088896341f + magic) - magic;
  Floats rest = x - whole * 0.693359375f - whole * -2.12194440e-4f;
  Floats sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.f;
  Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Floats scale;
  std::memcpy(&scale, &power, sizeof scale);
  return sum * scale;
}

// ---- Numbers as they lie in memory ----

struct Type {
  size_t size;
  void (*widen)(const void* from, float* to, int count);
  void (*narrow)(const float* from, void* to, int count);  // to the nearest, ties to even
};

INLINE uint32_t bits_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

void copy_in(const void* from, float* to, int count) { std::memcpy(to, from, count * sizeof *to); }
void copy_out(const float* from, void* to, int count) { std::memcpy(to, from, count * sizeof *from); }

FOR_EVERY_CPU void widen_bfloat16(const void* from, float* to, int count) {
  const uint16_t* halves = static_cast<const uint16_t*>(from);
  for (int i = 0; i < count; ++i) to[i] = float_of(uint32_t{halves[i]} << 16);
}

FOR_EVERY_CPU void narrow_bfloat16(const float* from, void* to, int count) {
  uint16_t* halves = static_cast<uint16_t*>(to);
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(from[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    halves[i] = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
  }
}

FOR_EVERY_CPU void widen_float16(const void* from, float* to, int count) {
  const uint16_t* halves = static_cast<const uint16_t*>(from);
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = halves[i], magnitude = (bits & 0x7fff) << 13;
    const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);  // subnormal numbers, too
    const uint32_t found = (bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : scaled;
    to[i] = float_of(found | (bits & 0x8000) << 16);
  }
}

FOR_EVERY_CPU void narrow_float16(const float* from, void* to, int count) {
  uint16_t* halves = static_cast<uint16_t*>(to);
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(from[i]), magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t found = magnitude < 113u << 23 ? subnormal : normal;
    found = magnitude >= 0x477ff000 ? 0x7c00 : found;
    found = magnitude > 0x7f800000 ? 0x7e00 : found;
    halves[i] = found | (bits >> 16 & 0x8000);
  }
}

const Type kTypes[] = {
    {4, copy_in, copy_out},
    {2, widen_bfloat16, narrow_bfloat16},
    {2, widen_float16, narrow_float16},
};

INLINE const char* at(const void* array, const Type& type, int64_t index) {
  return static_cast<const char*>(array) + index * static_cast<int64_t>(type.size);
}

INLINE char* at(void* array, const Type& type, int64_t index) {
  return static_cast<char*>(array) + index * static_cast<int64_t>(type.size);
}

// ---- Norms ----

struct Norm {
  const void *inputs, *added, *weight;  // added: null, or what is added to the inputs first
  void *sums, *outputs;
  int num_rows, width;
  float epsilon;
};

FOR_EVERY_CPU void scale_to_norm(float* row, int width, float epsilon) {
  Floats squares = {};
  for (int i = 0; i < width; i += kLanes) squares += load(row + i) * load(row + i);
  const float scale = 1.f / std::sqrt(sum_of(squares) / width + epsilon);
  for (int i = 0; i < width; ++i) row[i] *= scale;
}

FOR_EVERY_CPU void add(float* to, const float* from, int count) {
  for (int i = 0; i < count; ++i) to[i] += from[i];
}

FOR_EVERY_CPU void multiply(float* to, const float* from, int count) {
  for (int i = 0; i < count; ++i) to[i] *= from[i];
}

void normalise(const Type& type, const Norm& call) {
  const int width = call.width;
  Numbers row(padded(width)), other(padded(width)), weight(padded(width));
  type.widen(call.weight, weight.data(), width);
  for (int i = 0; i < call.num_rows; ++i) {
    const int64_t first = int64_t{i} * width;
    type.widen(at(call.inputs, type, first), row.data(), width);
    if (call.added) {
      type.widen(at(call.added, type, first), other.data(), width);
      add(row.data(), other.data(), width);
      type.narrow(row.data(), at(call.sums, type, first), width);
      type.widen(at(call.sums, type, first), row.data(), width);
    }
    scale_to_norm(row.data(), width, call.epsilon);
    char* outputs = at(call.outputs, type, first);
    type.narrow(row.data(), outputs, width);  // families round before they multiply by the weight
    type.widen(outputs, row.data(), width);
    multiply(row.data(), weight.data(), width);
    type.narrow(row.data(), outputs, width);
  }
}

// ---- Rotary positions ----

struct Rotation {
  void* rows;  // turned in place
  const void *cos, *sin;
  int num_rows, row_stride, num_heads, dim;
};

FOR_EVERY_CPU void turn(float* head, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[half + i];
    head[i] = low * cos[i] - high * sin[i];
    head[half + i] = high * cos[half + i] + low * sin[half + i];
  }
}

void rotate(const Type& type, const Rotation& call) {
  const int dim = call.dim, width = call.num_heads * dim;
  Numbers row(width), cos(dim), sin(dim);
  for (int i = 0; i < call.num_rows; ++i) {
    char* numbers = at(call.rows, type, int64_t{i} * call.row_stride);
    type.widen(numbers, row.data(), width);
    type.widen(at(call.cos, type, int64_t{i} * dim), cos.data(), dim);
    type.widen(at(call.sin, type, int64_t{i} * dim), sin.data(), dim);
    for (int head = 0; head < call.num_heads; ++head)
      turn(&row[head * dim], cos.data(), sin.data(), dim / 2);
    type.narrow(row.data(), numbers, width);
  }
}

// ---- Gated activations ----

struct Gate {
  const void* inputs;  // [num_rows, 2 * width]: gates, then the values that they scale
  void* outputs;
  int num_rows, width;
};

FOR_EVERY_CPU void silu(float* numbers, int width) {  // a multiple of kLanes
  for (int i = 0; i < width; i += kLanes) {
    const Floats x = load(numbers + i);
    store(numbers + i, x / (1.f + exponential(-x)));
  }
}

void gate(const Type& type, const Gate& call) {
  const int width = call.width;
  Numbers gates(padded(width)), values(width);
  for (int i = 0; i < call.num_rows; ++i) {
    const int64_t first = int64_t{i} * 2 * width;
    char* outputs = at(call.outputs, type, int64_t{i} * width);
    type.widen(at(call.inputs, type, first), gates.data(), width);
    silu(gates.data(), padded(width));
    type.narrow(gates.data(), outputs, width);  // families round before they multiply
    type.widen(outputs, gates.data(), width);
    type.widen(at(call.inputs, type, first + width), values.data(), width);
    multiply(gates.data(), values.data(), width);
    type.narrow(gates.data(), outputs, width);
  }
}

// ---- Attention ----
//
// Row r sees all columns before `base`, then those that it lists, which stand for it at base,
// base + 1, and so on: the branches of a draft tree take turns at these places. Columns are taken in
// blocks of kBlock, counted from column 0, with a running softmax.

constexpr int kBlock = 64;
constexpr int kVectors = kBlock / kLanes;
constexpr int kTile = 4;  // queries that share what is read of a block

struct Attention {
  const void *queries, *new_keys, *new_values;
  void *keys, *values, *outputs;
  int64_t query_head_stride, query_row_stride, new_head_stride, new_row_stride, cache_head_stride;
  int num_rows, num_heads, num_kv_heads, dim, start, base;
  const int32_t* order;  // in which rows are taken: those that list the same columns together
  const int32_t *starts, *counts, *columns;  // row r lists columns[starts[r]], ..., counts[r] of them
  const int32_t* positions;                  // of the rows, for windows
  float scaling;
  int window;  // 0: none
};

// Writes the transpose of 16 x 16 numbers.
FOR_EVERY_CPU void transpose(const float* from, int from_stride, float* to, int to_stride) {
  Floats rows[kLanes], turned[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_stride);
  // Four times: interleave each row of the first half with its fellow of the second half.
  const Ints low = kLane / 2 + kLane % 2 * kLanes, high = low + kLanes / 2;
  for (int time = 0; time < 4; ++time) {
    for (int i = 0; i < kLanes / 2; ++i) {
      turned[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      turned[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
    std::copy(turned, turned + kLanes, rows);
  }
  for (int i = 0; i < kLanes; ++i) store(to + i * to_stride, rows[i]);
}

// Columns of the cache in float32, block after block: keys transposed, [padded dim, kBlock], and
// values, [kBlock, padded dim].
class Columns {
 public:
  Columns(const Type& type, int num_blocks, int dim)
      : type_(type), dim_(dim), size_(kBlock * padded(dim)),
        keys_(static_cast<size_t>(num_blocks) * size_),
        values_(static_cast<size_t>(num_blocks) * size_), block_(size_) {}

  const float* keys(int block) const { return &keys_[static_cast<size_t>(block) * size_]; }
  const float* values(int block) const { return &values_[static_cast<size_t>(block) * size_]; }

  void put(int place, const char* key, const char* value) {
    float* keys = &keys_[static_cast<size_t>(place / kBlock) * size_ + place % kBlock];
    type_.widen(key, block_.data(), dim_);
    for (int i = 0; i < dim_; ++i) keys[i * kBlock] = block_[i];
    type_.widen(value, &values_[static_cast<size_t>(place) * padded(dim_)], dim_);
  }

  void put_block(const char* keys, const char* values) {  // as block 0
    const int stride = padded(dim_);
    const int num_pieces = stride == dim_ ? 1 : kBlock, size = kBlock / num_pieces * dim_;
    for (int i = 0; i < num_pieces; ++i) {
      type_.widen(at(keys, type_, i * size), &block_[i * stride], size);
      type_.widen(at(values, type_, i * size), &values_[i * stride], size);
    }
    for (int i = 0; i < stride; i += kLanes)
      for (int column = 0; column < kBlock; column += kLanes)
        transpose(&block_[column * stride + i], stride, &keys_[i * kBlock + column], kBlock);
  }

 private:
  const Type& type_;
  int dim_, size_;
  Numbers keys_, values_, block_;
};

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
    return call_.window ? std::max(0, call_.positions[row] + 1 - call_.window) : 0;
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
      block.put_block(key(b * kBlock), value(b * kBlock));
      for (int row = 0; row < call_.num_rows; ++row) start_at(row, b);
      add(0, call_.num_rows, block, 0, kBlock);
    }
  }

  void add_listed_columns() {
    const int start = call_.base / kBlock * kBlock, num_before = call_.base - start;
    int most = 0;
    for (int row = 0; row < call_.num_rows; ++row) most = std::max(most, call_.counts[row]);
    Columns tail(type_, (num_before + most + kBlock - 1) / kBlock, call_.dim);
    for (int i = 0; i < num_before; ++i) tail.put(i, key(start + i), value(start + i));
    std::vector<int32_t> there;  // the listed columns that stand in the tail
    for (int place = 0; place < call_.num_rows; ++place) {
      const int row = call_.order[place], size = call_.counts[row];
      const int32_t* mine = call_.columns + call_.starts[row];
      const int32_t* end = mine + std::min<size_t>(size, there.size());
      for (int i = std::mismatch(mine, end, there.begin()).first - mine; i < size; ++i) {
        tail.put(num_before + i, key(mine[i]), value(mine[i]));
        there.resize(i);
        there.push_back(mine[i]);
      }
      for (int b = 0, left = num_before + size; left > 0; ++b, left -= kBlock) {
        start_at(row, start / kBlock + b);
        if (sums_.first[row * group_] < std::min(left, kBlock))
          add(row, 1, tail, b, std::min(left, kBlock));
      }
    }
  }

  void start_at(int row, int block) {
    const int first = first_column(row) - block * kBlock;
    std::fill_n(&sums_.first[row * group_], group_, std::min(std::max(first, 0), kBlock));
  }

  void add(int row, int num_rows, const Columns& columns, int block, int end) {
    add_block_to(
        sums_, row * group_, num_rows * group_, call_.dim, columns.keys(block),
        columns.values(block), end, call_.scaling);
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

constexpr int64_t kWorthAThread = 1 << 24;  // multiplications; a thread takes 20 us to start

void attend(const Type& type, const Attention& call, int num_threads) {
  const int64_t num_products = int64_t{2} * call.num_rows * call.num_heads * call.dim *
                               (int64_t{call.base} + call.num_rows);
  num_threads = static_cast<int>(std::min<int64_t>(
      {num_threads, call.num_kv_heads, 1 + num_products / kWorthAThread}));
  auto work = [&](int first) {
    for (int head = first; head < call.num_kv_heads; head += num_threads)
      HeadAttention(type, call, head).run();
  };
  std::vector<std::thread> threads;
  for (int first = 1; first < num_threads; ++first) threads.emplace_back(work, first);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

// ---- The Python module ----

// Reads the arguments one after another.
class Arguments {
 public:
  Arguments(PyObject* const* arguments, Py_ssize_t count) : next_(arguments), left_(count) {}

  template <class T>
  void operator()(T*& address) { address = static_cast<T*>(PyLong_AsVoidPtr(take())); }
  void operator()(int& number) { number = static_cast<int>(PyLong_AsLongLong(take())); }
  void operator()(int64_t& number) { number = PyLong_AsLongLong(take()); }
  void operator()(float& number) { number = static_cast<float>(PyFloat_AsDouble(take())); }

  template <class... Values>
  bool read(Values&... values) {  // false: a Python error is set
    ((*this)(values), ...);
    if (left_ != 0 && !PyErr_Occurred())
      PyErr_Format(PyExc_TypeError, "expected %zd arguments", sizeof...(values));
    return !PyErr_Occurred();
  }

 private:
  PyObject* take() { return --left_ >= 0 ? *next_++ : Py_None; }

  PyObject* const* next_;
  Py_ssize_t left_;
};

template <class Work>
PyObject* without_lock(Work work) {
  bool has_failed = false;
  Py_BEGIN_ALLOW_THREADS
  try {
    work();
  } catch (const std::exception&) {  // no memory, no thread
    has_failed = true;
  }
  Py_END_ALLOW_THREADS
  if (has_failed) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

PyObject* run_normalise(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type;
  Norm call;
  if (!Arguments(arguments, count)
           .read(type, call.inputs, call.added, call.weight, call.sums, call.outputs,
                 call.num_rows, call.width, call.epsilon))
    return nullptr;
  return without_lock([&] { normalise(kTypes[type], call); });
}

PyObject* run_rotate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type;
  Rotation call;
  if (!Arguments(arguments, count)
           .read(type, call.rows, call.cos, call.sin, call.num_rows, call.row_stride,
                 call.num_heads, call.dim))
    return nullptr;
  return without_lock([&] { rotate(kTypes[type], call); });
}

PyObject* run_gate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type;
  Gate call;
  if (!Arguments(arguments, count)
           .read(type, call.inputs, call.outputs, call.num_rows, call.width))
    return nullptr;
  return without_lock([&] { gate(kTypes[type], call); });
}

PyObject* run_attend(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type, num_threads;
  Attention call;
  if (!Arguments(arguments, count)
           .read(type, num_threads, call.queries, call.query_head_stride, call.query_row_stride,
                 call.new_keys, call.new_values, call.new_head_stride, call.new_row_stride,
                 call.keys, call.values, call.cache_head_stride, call.outputs, call.num_rows,
                 call.num_heads, call.num_kv_heads, call.dim, call.start, call.base, call.order,
                 call.starts, call.counts, call.columns, call.positions, call.scaling, call.window))
    return nullptr;
  return without_lock([&] { attend(kTypes[type], call, num_threads); });
}

#define METHOD(name) {#name, reinterpret_cast<PyCFunction>(run_##name), METH_FASTCALL, nullptr}
PyMethodDef kMethods[] = {
    METHOD(normalise), METHOD(rotate), METHOD(gate), METHOD(attend), {nullptr, nullptr, 0, nullptr}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_rows", nullptr, -1, kMethods,
                       nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__rows() { return PyModule_Create(&kModule); }
