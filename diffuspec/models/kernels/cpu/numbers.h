// Number formats in memory: float32, bfloat16 and float16; all computation is in float32.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernels {

using Numbers = std::vector<float>;

constexpr int divided_up(int count, int size) { return (count + size - 1) / size; }

struct Type {
  size_t size;
  void (*widen)(const void* from, float* to, int count);
  void (*narrow)(const float* from, void* to, int count);  // rounds to nearest, ties to even
};

enum TypeIndex { kFloat32, kBfloat16, kFloat16 };
extern const Type kTypes[];  // indexed by TypeIndex

inline const char* at(const void* array, const Type& type, int64_t index) {
  return static_cast<const char*>(array) + index * static_cast<int64_t>(type.size);
}

inline char* at(void* array, const Type& type, int64_t index) {
  return static_cast<char*>(array) + index * static_cast<int64_t>(type.size);
}

// An array's numbers in float32: the array itself if it has that type, else widened into `room`,
// which only grows, since new numbers are first cleared.
inline const float* widened(const Type& type, const void* from, int count, Numbers& room) {
  if (&type == &kTypes[kFloat32]) return static_cast<const float*>(from);
  if (room.size() < size_t(count)) room.resize(count);
  type.widen(from, room.data(), count);
  return room.data();
}

}  // namespace kernels
