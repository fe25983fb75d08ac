// Products with vectors of one width. `vector_products.cpp`, `narrow_products.cpp` and
// `plain_kinds.h` define what differs and then include this, each for its own processors:
//
// - ON_ONE_LEVEL: the attribute of functions for these processors, before including `vectors.h`;
// - kWidth: numbers in a vector; kPart: outputs whose weights are widened together; kGroup: the most
//   rows whose sums fit into registers, and `vectors_of(num_rows)`: with how many vectors of outputs
//   those of some rows do; kFetches: whether weights may be prefetched a chunk ahead;
// - `to_whole(vector)`: the nearest integers, ties to even;
// - kinds Float32, Float32WithBfloat16, Float32WithFloat16 and Int8, with kRows, the most rows whose
//   sums fit into registers together.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "block_products.h"
#include "fetching.h"
#include "vectors.h"

namespace kernels {
namespace {

constexpr int kWorthWidening = 2 * kGroup;  // number of rows from which on weights are widened once

// Adds some steps' products to the sums of N rows with V vectors of outputs. The weights of
// successive steps are kDistance apart.
template <class Kind, int N, int V, int kDistance>
INLINE void add_group(
    const typename Kind::Input* inputs, int64_t stride, const typename Kind::Weight* weights,
    int num_steps, Ahead& ahead, Sums<typename Kind::Sum> sums) {
  decltype(Kind::load(nullptr)) found[N][V];
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      found[i][v] = Kind::load((sums.first ? sums.first : sums.to + i * sums.stride) + v * kWidth);
  Ahead rest = ahead;
  for (int step = 0; step < num_steps; ++step, weights += kDistance) {
    rest.fetch();
    if constexpr (V <= N) {  // registers hold a step's weights, else its numbers of the rows
      decltype(Kind::load_weights(nullptr)) weight[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) weight[v] = Kind::load_weights(weights + v * kWidth);
#pragma GCC unroll 6
      for (int i = 0; i < N; ++i) {
        const auto number = Kind::spread(inputs[i * stride + step]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) found[i][v] = Kind::add(found[i][v], number, weight[v]);
      }
    } else {
      decltype(Kind::spread(0)) numbers[N];
#pragma GCC unroll 6
      for (int i = 0; i < N; ++i) numbers[i] = Kind::spread(inputs[i * stride + step]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const auto weight = Kind::load_weights(weights + v * kWidth);
#pragma GCC unroll 6
        for (int i = 0; i < N; ++i) found[i][v] = Kind::add(found[i][v], numbers[i], weight);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) Kind::store(sums.to + i * sums.stride + v * kWidth, found[i][v]);
  ahead = rest;
}

// Adds some steps' products to the sums of `num_rows` rows, at most N, with kPart outputs.
template <class Kind, int N, int kDistance>
INLINE void add_few_rows(
    const typename Kind::Input* inputs, int64_t stride, int num_rows,
    const typename Kind::Weight* weights, int num_steps, Ahead& ahead,
    Sums<typename Kind::Sum> sums) {
  if (num_rows == N) {
    constexpr int V = vectors_of(N);
    for (int output = 0; output < kPart; output += V * kWidth)
      add_group<Kind, N, V, kDistance>(
          inputs, stride, weights + output, num_steps, ahead, sums.from(output));
    return;
  }
  if constexpr (N > 1)
    add_few_rows<Kind, N - 1, kDistance>(
        inputs, stride, num_rows, weights, num_steps, ahead, sums);
}

// Adds some steps' products to the sums of any number of rows with kPart outputs.
template <class Kind, int kDistance>
ON_ONE_LEVEL void add_rows(
    const typename Kind::Input* inputs, int64_t stride, int num_rows,
    const typename Kind::Weight* weights, int num_steps, Ahead& ahead,
    const Sums<typename Kind::Sum>& sums) {
  typename Kind::Sum* to = sums.to;
  for (int num_groups = divided_up(num_rows, Kind::kRows); num_groups; --num_groups) {
    const int size = divided_up(num_rows, num_groups);
    add_few_rows<Kind, Kind::kRows, kDistance>(
        inputs, stride, size, weights, num_steps, ahead, {to, sums.stride, sums.first});
    inputs += size * stride;
    to += size * sums.stride;
    num_rows -= size;
  }
}

// Adds some steps' products to the sums of one row with a block of outputs, with as many
// independent chains of additions as a processor can overlap.
template <class Kind>
ON_ONE_LEVEL void add_row(
    const typename Kind::Input* inputs, const typename Kind::Weight* weights, int num_steps,
    Ahead ahead, Sums<typename Kind::Sum> sums) {
  add_group<Kind, 1, kBlock / kWidth, kBlock>(inputs, 0, weights, num_steps, ahead, sums);
}

// Writes the weights of some steps for kPart outputs as float32, [num_steps, kPart].
template <class Kind>
ON_ONE_LEVEL void widen_part(const typename Kind::Weight* weights, int num_steps, float* to) {
  for (int step = 0; step < num_steps; ++step, weights += kBlock)
#pragma GCC unroll 4
    for (int v = 0; v < kPart; v += kWidth, to += kWidth)
      Float32::store(to, Kind::load_weights(weights + v));
}

// The weights one chunk after those of some steps, which are read `num_passes` times.
template <class Weight>
Ahead ahead_of(const Product& call, const Weight* weights, int num_steps, int num_passes) {
  if (!kFetches || !call.fetches) return {};
  const int64_t num_bytes = int64_t{num_steps} * kBlock * sizeof(Weight);
  return {weights + kChunk * kBlock, num_bytes, int64_t{num_steps} * num_passes};
}

// Sums all steps of rows, [num_rows, num_steps], with a block of outputs.
template <class Kind>
void add_up(
    const Product& call, int block, const typename Kind::Input* inputs, int num_steps,
    Sums<typename Kind::Sum> sums) {
  constexpr bool is_widened = std::is_same_v<typename Kind::Weight, uint16_t>;
  const auto* weights = reinterpret_cast<const typename Kind::Weight*>(call.matrix.weights);
  weights += int64_t{block} * num_steps * kBlock;
  const int num_rows = call.num_rows;
  if (num_rows == 1)
    return add_row<Kind>(
        inputs, weights, num_steps, ahead_of(call, weights, num_steps, 1), sums);
  const int num_groups = divided_up(num_rows, Kind::kRows);
  const int num_vectors = vectors_of(divided_up(num_rows, num_groups));
  const int num_passes = kBlock / (num_vectors * kWidth) * num_groups;
  alignas(64) float wide[is_widened ? kChunk * kPart : 1];
  for (int step = 0; step < num_steps; step += kChunk, sums.first = nullptr) {
    const int count = std::min(kChunk, num_steps - step);
    const auto* from = weights + step * kBlock;
    Ahead ahead = ahead_of(call, from, count, num_passes);
    for (int part = 0; part < kBlock; part += kPart) {
      if constexpr (is_widened) {
        if (num_rows >= kWorthWidening) {
          widen_part<Kind>(from + part, count, wide);
          add_rows<Float32, kPart>(
              inputs + step, num_steps, num_rows, wide, count, ahead, sums.from(part));
          continue;
        }
      }
      add_rows<Kind, kBlock>(
          inputs + step, num_steps, num_rows, from + part, count, ahead, sums.from(part));
    }
  }
}

using Reals = typename VectorOf<kWidth>::Floats;
using Wholes = typename VectorOf<kWidth>::Ints;
typedef uint8_t Bytes __attribute__((vector_size(kWidth)));

// See RoundedRows.
ON_ONE_LEVEL float round_row(const float* numbers, int count, uint8_t* to) {
  constexpr int kParts = RoundedRows::kPadding / kWidth;  // numbers are padded with zeros
  Reals largest[kParts] = {}, rest[kParts] = {};
  for (int i = 0; i < count; i += RoundedRows::kPadding)
    for (int p = 0; p < kParts; ++p) {
      const Reals found = read<Reals>(numbers + i + p * kWidth);
      largest[p] = larger(larger(found, -found), largest[p]);
      rest[p] += found * 0.f;  // NaN if any is not finite
    }
  const float magnitude = largest_of(largest) + sum_of(rest);
  const float factor = magnitude > 0.f ? 127.f / magnitude : 0.f;
  for (int i = 0; i < count; i += kWidth) {
    const Wholes moved = to_whole(read<Reals>(numbers + i) * factor) + 128;
    const Bytes bytes = __builtin_convertvector(moved, Bytes);
    if (i + kWidth <= count) write(to + i, bytes);
    else std::memcpy(to + i, &bytes, count - i);
  }
  return magnitude / 127.f;
}

// Writes the outputs of a row for a block.
ON_ONE_LEVEL void unround(
    const int32_t* sums, float scale, const float* scales, const float* biases, float* outputs) {
  for (int i = 0; i < kBlock; i += kWidth) {
    const Reals sum = __builtin_convertvector(read<Wholes>(sums + i), Reals);
    const Reals factor = scale * read<Reals>(scales + i);
    write(outputs + i, sum * factor + read<Reals>(biases + i));
  }
}

// See `multiply_by`.
struct VectorKernels {
  using Float32 = kernels::Float32;
  using Float32WithBfloat16 = kernels::Float32WithBfloat16;
  using Float32WithFloat16 = kernels::Float32WithFloat16;
  using Int8 = kernels::Int8;

  template <class Kind>
  static void add_up(
      const Product& call, int block, const typename Kind::Input* inputs, int num_steps,
      Sums<typename Kind::Sum> sums) {
    kernels::add_up<Kind>(call, block, inputs, num_steps, sums);
  }

  static constexpr auto round_row = kernels::round_row;
  static constexpr auto unround = kernels::unround;
};

}  // namespace
}  // namespace kernels
