// Computes products that stdin describes, and writes their outputs to stdout: see test_compilers.py.
//
//     products_of_stdin LEVEL

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "level.h"
#include "products.h"

namespace {

struct Header {
  int32_t type, weight_type, num_inputs, num_outputs, num_rows, num_weight_bytes, has_scales;
};

template <class Number>
std::vector<Number> read(size_t count) {
  std::vector<Number> numbers(count);
  if (std::fread(numbers.data(), sizeof(Number), count, stdin) != count) std::exit(1);
  return numbers;
}

}  // namespace

int main(int, char** arguments) {
  kernels::use_level(static_cast<kernels::Level>(std::atoi(arguments[1])));
  for (Header header; std::fread(&header, sizeof header, 1, stdin) == 1;) {
    const kernels::Type& type = kernels::kTypes[header.type];
    const size_t num_padded = (header.num_outputs + 63) / 64 * 64;
    const auto weights = read<char>(header.num_weight_bytes);
    const auto biases = read<float>(num_padded);
    const auto scales = read<float>(header.has_scales ? num_padded : 0);
    const auto offsets = read<int32_t>(header.has_scales ? num_padded : 0);
    const auto inputs = read<char>(size_t(header.num_rows) * header.num_inputs * type.size);
    std::vector<char> outputs(size_t(header.num_rows) * header.num_outputs * type.size);
    kernels::Matrix matrix{};
    matrix.weights = weights.data();
    matrix.biases = biases.data();
    matrix.scales = header.has_scales ? scales.data() : nullptr;
    matrix.offsets = header.has_scales ? offsets.data() : nullptr;
    matrix.num_inputs = header.num_inputs;
    matrix.num_outputs = header.num_outputs;
    matrix.weight_type = header.weight_type;
    kernels::multiply(type, {matrix, inputs.data(), outputs.data(), header.num_rows}, 1);
    std::fwrite(outputs.data(), 1, outputs.size(), stdout);
  }
}
