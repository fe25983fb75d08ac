// Writes checksums of norms, gates, rotations, attention and products of quantised weights to stdout,
// in float32: see test_compilers.py.
//
//     checksums LEVEL

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "level.h"
#include "quantized_products.h"

namespace {

using kernels::Numbers;

const kernels::Type& kType = kernels::kTypes[kernels::kFloat32];

// Numbers between -2 and 2, the same everywhere.
Numbers some_numbers(size_t count) {
  static uint32_t state = 1;
  Numbers numbers(count);
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = float(int32_t(state >> 8) - (1 << 23)) / float(1 << 22);
  }
  return numbers;
}

// The FNV-1a hash of the numbers' bits.
void print_checksum(const char* name, const Numbers& numbers) {
  uint64_t hash = 14695981039346656037u;
  for (const float number : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  std::printf("%s %016llx\n", name, static_cast<unsigned long long>(hash));
}

void normalise() {
  const int num_rows = 7, width = 77;
  const Numbers inputs = some_numbers(num_rows * width), added = some_numbers(num_rows * width);
  const Numbers weight = some_numbers(width);
  Numbers sums(num_rows * width), outputs(num_rows * width);
  kernels::normalise(kType, {inputs.data(), added.data(), weight.data(), sums.data(),
                             outputs.data(), num_rows, width, 1e-6f});
  print_checksum("norm", outputs);
}

void gate() {
  const int num_rows = 5, width = 77;
  const Numbers inputs = some_numbers(num_rows * 2 * width);
  Numbers outputs(num_rows * width);
  kernels::gate(kType, {inputs.data(), outputs.data(), num_rows, width});
  print_checksum("gate", outputs);
}

void rotate() {
  const int num_rows = 5, num_heads = 3, dim = 64;
  Numbers rows = some_numbers(num_rows * num_heads * dim);
  const Numbers cos = some_numbers(num_rows * dim), sin = some_numbers(num_rows * dim);
  kernels::rotate(kType, {rows.data(), cos.data(), sin.data(), num_rows, num_heads * dim,
                          num_heads, dim});
  print_checksum("rotation", rows);
}

// A prompt, each row of which sees itself and those before it.
void attend(int num_rows, bool has_transposed_keys) {
  const int num_heads = 3, dim = 48, capacity = 192;
  const Numbers queries = some_numbers(num_rows * num_heads * dim);
  const Numbers new_keys = some_numbers(num_rows * dim), new_values = some_numbers(num_rows * dim);
  Numbers keys(capacity * dim), values(capacity * dim), outputs(queries.size());
  std::vector<int32_t> places(num_rows), starts(num_rows, 0), counts(num_rows);
  std::iota(places.begin(), places.end(), 0);
  std::iota(counts.begin(), counts.end(), 1);
  kernels::Attention call{};
  call.queries = queries.data();
  call.new_keys = new_keys.data();
  call.new_values = new_values.data();
  call.keys = keys.data();
  call.values = values.data();
  call.outputs = outputs.data();
  call.query_head_stride = call.new_head_stride = call.new_row_stride = dim;
  call.query_row_stride = num_heads * dim;
  call.cache_head_stride = capacity * dim;
  call.num_rows = num_rows;
  call.num_heads = num_heads;
  call.num_kv_heads = 1;
  call.dim = dim;
  call.lists = {places.data(), starts.data(), counts.data(), places.data(), places.data()};
  call.scaling = 0.3f;
  call.has_transposed_keys = has_transposed_keys;
  kernels::attend(kType, &call, 1, 1);
  print_checksum(has_transposed_keys ? "attention, transposed" : "attention", outputs);
}

// Rows times whole numbers of 4 or 8 bits, with an offset for each group where `has_offsets`.
void multiply(int bits, bool has_offsets, bool quantizes_rows) {
  const int num_rows = 7, num_inputs = 96, num_outputs = 70, group = 32;
  const int num_padded = 128, num_scales = num_inputs / group * num_padded;
  const Numbers inputs = some_numbers(num_rows * num_inputs), scales = some_numbers(num_scales);
  const Numbers offsets = some_numbers(num_scales), biases(num_padded);
  std::vector<int32_t> words(num_inputs * bits / 32 * num_padded);
  const Numbers bytes = some_numbers(words.size());
  std::memcpy(words.data(), bytes.data(), bytes.size() * sizeof(float));
  kernels::Part part{};
  part.weights = words.data();
  part.supers = reinterpret_cast<const uint8_t*>(scales.data());
  if (has_offsets) part.super_offsets = reinterpret_cast<const uint8_t*>(offsets.data());
  part.bits = bits;
  part.zero = bits == 4 ? 8 : 0;
  part.group = group;
  part.ratio = 1;
  part.scale_type = kernels::kFloat32;
  part.num_outputs = num_outputs;
  part.quantizes_rows = quantizes_rows;
  kernels::Matrix matrix{};
  matrix.biases = biases.data();
  matrix.num_inputs = num_inputs;
  matrix.num_outputs = num_outputs;
  matrix.num_parts = 1;
  matrix.parts = &part;
  Numbers outputs(num_rows * num_outputs);
  kernels::multiply_quantized(kType, {matrix, reinterpret_cast<const char*>(inputs.data()),
                                      reinterpret_cast<char*>(outputs.data()), num_rows}, 1);
  print_checksum(quantizes_rows ? "product, rows in 8 bits" : "product", outputs);
}

}  // namespace

int main(int, char** arguments) {
  kernels::use_level(static_cast<kernels::Level>(std::atoi(arguments[1])));
  normalise();
  gate();
  rotate();
  for (const bool has_transposed_keys : {false, true})
    for (const int num_rows : {1, 7, 150}) attend(num_rows, has_transposed_keys);
  for (const bool quantizes_rows : {false, true})
    for (const int bits : {4, 8})
      for (const bool has_offsets : {false, true}) multiply(bits, has_offsets, quantizes_rows);
}
