// Products of quantised weights with rows in bfloat16, which represents integers of 8 bits exactly: a
// group's integers are multiplied with a row's numbers and added up, and its scale multiplies the sum.

#pragma once

#include <memory>

#include "quantized_products.h"

namespace kernels {

// Returns rows for a part and all that are `fits` to it, if `has_bfloat16_vectors`. A row's sums add
// the groups in order, whatever the other rows.
std::shared_ptr<const PartRows> bfloat16_rows(const Part& part, const Product& call);

}  // namespace kernels
