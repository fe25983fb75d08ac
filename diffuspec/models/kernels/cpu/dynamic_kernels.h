// Products of quantised rows with vectors of one width. `dynamic_products.cpp` includes this in a
// namespace for each kind of processor, after defining what differs:
//
// - ON_LEVEL and ON_LEVEL_INLINE: the attributes of functions for these processors;
// - kWidth: numbers in a vector; kRows: rows whose sums with kVectors of outputs fill the registers;
// - kFlips: whether the sign bit of 8-bit weights is flipped, so that they are unsigned;
// - `add<kBits>(sums, weights, numbers)`: adds the products of four signed numbers and four weights of
//   each output to 32-bit sums; weights are unsigned, or signed without kFlips.

using Reals = typename VectorOf<kWidth>::Floats;
using Wholes = typename VectorOf<kWidth>::Ints;

// As in `vectors.h`, whose functions Clang does not inline here: they return wide vectors without the
// instructions for them.
template <class Vector>
ON_LEVEL_INLINE Vector read(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector>
ON_LEVEL_INLINE void write(void* to, Vector value) {
  std::memcpy(to, &value, sizeof value);
}

// The weights of one group for kVectors of outputs.
struct Weights {
  const int32_t* words;
  const float* scales;
  const float* offsets;  // null: `zero` is subtracted from all weights
  int zero, count;       // count: number of inputs
};

// Successive rows, starting at one of their runs.
struct Rows {
  Rows(const QuantizedRows& all, int first, int input) : all(all), first(first), input(input) {}
  const int32_t* words(int row) const { return all.words(first + row) + input / 4; }
  float scale(int row) const { return all.scales(first + row)[input / all.run]; }
  int32_t sum(int row) const { return all.sums(first + row)[input / all.run]; }

  const QuantizedRows& all;
  const int first, input;
};

// Multiplies the words of a run with N rows.
template <int kBits, int N>
ON_LEVEL_INLINE void add_run(
    const int32_t* weights, int count, Ahead& ahead, const Rows& rows, Wholes (&found)[N][kVectors]) {
  const int32_t* numbers[N];
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i) numbers[i] = rows.words(i);
  Ahead rest = ahead;
  constexpr int kParts = 8 / kBits;  // numbers in a word
  constexpr int32_t kFlipped = kFlips ? int32_t(0x80808080) : 0;
  for (int i = 0; i < count; i += 4 * kParts, weights += kBlock) {
    rest.fetch();
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Wholes words = read<Wholes>(weights + v * kWidth);
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        const Wholes four = kBits == 8 ? words ^ kFlipped : words >> 4 * part & 0x0f0f0f0f;
#pragma GCC unroll 6
        for (int row = 0; row < N; ++row)
          found[row][v] = add<kBits>(found[row][v], four, numbers[row][part]);
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < N; ++row) numbers[row] += kParts;
  }
  ahead = rest;
}

// Adds a group's products to the sums of N rows.
template <int kBits, int N>
ON_LEVEL_INLINE void add_group(const Weights& weights, Ahead& ahead, const QuantizedRows& all,
                               int first_row, int first_input, float* sums) {
  constexpr int kHigher = kBits == 8 && kFlips ? 128 : 0;  // offset of weights as they are read
  for (int input = 0; input < weights.count; input += all.run) {
    const Rows rows(all, first_row, first_input + input);
    Wholes found[N][kVectors];
#pragma GCC unroll 6
    for (int row = 0; row < N; ++row) {
      const int32_t begin = -(kHigher + weights.zero) * rows.sum(row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) found[row][v] = Wholes{} + begin;
    }
    const int32_t* words = weights.words + int64_t{input} * kBits / 32 * kBlock;
    add_run<kBits, N>(words, all.run, ahead, rows, found);
#pragma GCC unroll 6
    for (int row = 0; row < N; ++row) {
      const float scale = rows.scale(row), whole = scale * rows.sum(row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        float* to = sums + row * kBlock + v * kWidth;
        const Reals products = __builtin_convertvector(found[row][v], Reals);
        const Reals scales = scale * read<Reals>(weights.scales + v * kWidth);
        Reals sum = products * scales + read<Reals>(to);
        if (weights.offsets) sum = whole * read<Reals>(weights.offsets + v * kWidth) + sum;
        write(to, sum);
      }
    }
  }
}

template <int kBits, int N>
ON_LEVEL_INLINE void add_few_rows(const Weights& weights, Ahead& ahead, const QuantizedRows& all,
                                  int num_rows, int first_row, int first_input, float* sums) {
  if (num_rows == N) return add_group<kBits, N>(weights, ahead, all, first_row, first_input, sums);
  if constexpr (N > 1)
    add_few_rows<kBits, N - 1>(weights, ahead, all, num_rows, first_row, first_input, sums);
}

template <int kBits>
ON_LEVEL_INLINE void add_all(
    const Part& part, int block, const QuantizedRows& all, const Product& call, float* sums) {
  constexpr int kPart = kVectors * kWidth;
  for (int begin = 0; begin < call.num_rows; begin += kRowsAtATime) {
    const int end = std::min(begin + kRowsAtATime, call.num_rows);
    Groups groups(part, call.matrix.num_inputs, block);
    for (int group = 0; group < groups.count(); ++group) {
      groups.read_next(group);
      const int num_parts = kBlock / kPart * divided_up(end - begin, kRows);
      Ahead ahead = groups.ahead(group, call.fetches, num_parts);
      for (int output = 0; output < kBlock; output += kPart) {
        const Weights weights{groups.weights(group) + output, groups.scales + output,
                              groups.has_offsets() ? groups.offsets + output : nullptr,
                              groups.has_offsets() ? 0 : part.zero, part.group};
        for (int row = begin, size; row < end; row += size) {
          size = divided_up(end - row, divided_up(end - row, kRows));
          add_few_rows<kBits, kRows>(weights, ahead, all, size, row, group * part.group,
                                     sums + int64_t{row} * kBlock + output);
        }
      }
    }
  }
}

ON_LEVEL void add_part(
    const Part& part, int block, const QuantizedRows& rows, const Product& call, float* sums) {
  if (part.bits == 4) add_all<4>(part, block, rows, call, sums);
  else add_all<8>(part, block, rows, call, sums);
}
