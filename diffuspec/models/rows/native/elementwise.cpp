#include "elementwise.h"

#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace rows {
namespace {

FOR_EVERY_CPU void scale_to_norm(float* row, int width, float epsilon) {
  Floats squares = {};
  for (int i = 0; i < width; i += kLanes) squares += load(row + i) * load(row + i);
  const float scale = 1.f / std::sqrt(sum_of(squares) / width + epsilon);
  for (int i = 0; i < width; ++i) row[i] *= scale;
}

FOR_EVERY_CPU void add_to(float* to, const float* from, int count) {
  for (int i = 0; i < count; ++i) to[i] += from[i];
}

FOR_EVERY_CPU void multiply(float* to, const float* from, int count) {
  for (int i = 0; i < count; ++i) to[i] *= from[i];
}

FOR_EVERY_CPU void turn(float* head, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[half + i];
    head[i] = low * cos[i] - high * sin[i];
    head[half + i] = high * cos[half + i] + low * sin[half + i];
  }
}

FOR_EVERY_CPU void silu(float* numbers, int width) {  // a multiple of kLanes
  for (int i = 0; i < width; i += kLanes) {
    const Floats x = load(numbers + i);
    store(numbers + i, x / (1.f + exponential(-x)));
  }
}

}  // namespace

void add(const Type& type, const Sum& call) {
  constexpr int kPart = 1024;  // numbers at a time
  float sums[kPart], other[kPart];
  for (int first = 0; first < call.count; first += kPart) {
    const int count = std::min(kPart, call.count - first);
    type.widen(at(call.inputs, type, first), sums, count);
    type.widen(at(call.added, type, first), other, count);
    add_to(sums, other, count);
    type.narrow(sums, at(call.outputs, type, first), count);
  }
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
      add_to(row.data(), other.data(), width);
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

}  // namespace rows
