#include "elementwise.h"

#include <algorithm>
#include <cmath>

#include "registers.h"

namespace kernels {
namespace {

template <class Registers>
INLINE void scale_to_norm(float* row, int width, float epsilon) {
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  constexpr int kParts = kLanes / Registers::kNumbers;
  Vector squares[kParts] = {};
  for (int i = 0; i < width; i += kLanes)
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Vector numbers = read<Vector>(row + i + p * Registers::kNumbers);
      squares[p] += numbers * numbers;
    }
  const float scale = 1.f / std::sqrt(sum_of(squares) / width + epsilon);
  for (int i = 0; i < width; ++i) row[i] *= scale;
}

void add_to(float* to, const float* from, int count) {
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < count; ++i) to[i] += from[i];
  });
}

void multiply(float* to, const float* from, int count) {
  on_level([=]() ALWAYS_INLINE {
    for (int i = 0; i < count; ++i) to[i] *= from[i];
  });
}

void rotate(float* heads, const float* cos, const float* sin, int num_heads, int half) {
  on_level([=]() ALWAYS_INLINE {
    for (float* head = heads; head < heads + num_heads * 2 * half; head += 2 * half)
#pragma GCC ivdep
      for (int i = 0; i < half; ++i) {
        const float low = head[i], high = head[half + i];
        head[i] = low * cos[i] - high * sin[i];
        head[half + i] = high * cos[half + i] + low * sin[half + i];
      }
  });
}

template <class Registers>
INLINE void silu(float* numbers, int width) {  // width: a multiple of kLanes
  using Vector = typename VectorOf<Registers::kNumbers>::Floats;
  for (int i = 0; i < width; i += Registers::kNumbers) {
    const Vector x = read<Vector>(numbers + i);
    write(numbers + i, x / (1.f + exponential(-x)));
  }
}

ON_WIDE_REGISTERS void scale_wide(float* row, int width, float epsilon) {
  scale_to_norm<WideRegisters>(row, width, epsilon);
}
ON_NARROW_REGISTERS void scale_narrow(float* row, int width, float epsilon) {
  scale_to_norm<NarrowRegisters>(row, width, epsilon);
}
void scale_other(float* row, int width, float epsilon) {
  scale_to_norm<OtherRegisters>(row, width, epsilon);
}

ON_WIDE_REGISTERS void silu_wide(float* numbers, int width) { silu<WideRegisters>(numbers, width); }
ON_NARROW_REGISTERS void silu_narrow(float* numbers, int width) {
  silu<NarrowRegisters>(numbers, width);
}
void silu_other(float* numbers, int width) { silu<OtherRegisters>(numbers, width); }

// Returns where to compute a row: in place if it consists of whole float32 vectors, else in `room`.
float* place(const Type& type, void* row, int width, Numbers& room) {
  if (&type == &kTypes[kFloat32] && width % kLanes == 0) return static_cast<float*>(row);
  room.resize(padded(width));
  return room.data();
}

}  // namespace

void add(const Type& type, const Sum& call) {
  constexpr int kPart = 1024;  // numbers processed at a time
  Numbers sums_room, other_room;
  for (int first = 0; first < call.count; first += kPart) {
    const int count = std::min(kPart, call.count - first);
    char* outputs = at(call.outputs, type, first);
    float* sums = place(type, outputs, count, sums_room);
    type.widen(at(call.inputs, type, first), sums, count);
    add_to(sums, widened(type, at(call.added, type, first), count, other_room), count);
    type.narrow(sums, outputs, count);
  }
}

void normalise(const Type& type, const Norm& call) {
  const int width = call.width;
  Numbers row_room, other_room, weight_room;
  const float* weight = widened(type, call.weight, width, weight_room);
  const auto scale = fitting(scale_wide, scale_narrow, scale_other);
  for (int i = 0; i < call.num_rows; ++i) {
    const int64_t first = int64_t{i} * width;
    char* outputs = at(call.outputs, type, first);
    float* row = place(type, outputs, width, row_room);
    type.widen(at(call.inputs, type, first), row, width);
    if (call.added) {
      add_to(row, widened(type, at(call.added, type, first), width, other_room), width);
      type.narrow(row, at(call.sums, type, first), width);
      type.widen(at(call.sums, type, first), row, width);
    }
    scale(row, width, call.epsilon);
    type.narrow(row, outputs, width);  // model families round before they multiply by the weight
    type.widen(outputs, row, width);
    multiply(row, weight, width);
    type.narrow(row, outputs, width);
  }
}

void rotate(const Type& type, const Rotation& call) {
  const int dim = call.dim, width = call.num_heads * dim;
  Numbers row_room, cos_room, sin_room;
  for (int i = 0; i < call.num_rows; ++i) {
    char* numbers = at(call.rows, type, int64_t{i} * call.row_stride);
    float* row = place(type, numbers, width, row_room);
    type.widen(numbers, row, width);
    const float* cos = widened(type, at(call.cos, type, int64_t{i} * dim), dim, cos_room);
    const float* sin = widened(type, at(call.sin, type, int64_t{i} * dim), dim, sin_room);
    rotate(row, cos, sin, call.num_heads, dim / 2);
    type.narrow(row, numbers, width);
  }
}

void gate(const Type& type, const Gate& call) {
  const int width = call.width;
  Numbers gates_room, values_room;
  const auto activate = fitting(silu_wide, silu_narrow, silu_other);
  for (int i = 0; i < call.num_rows; ++i) {
    const int64_t first = int64_t{i} * 2 * width;
    char* outputs = at(call.outputs, type, int64_t{i} * width);
    float* gates = place(type, outputs, width, gates_room);
    type.widen(at(call.inputs, type, first), gates, width);
    activate(gates, padded(width));
    type.narrow(gates, outputs, width);  // model families round before they multiply
    type.widen(outputs, gates, width);
    multiply(gates, widened(type, at(call.inputs, type, first + width), width, values_room), width);
    type.narrow(gates, outputs, width);
  }
}

}  // namespace kernels
