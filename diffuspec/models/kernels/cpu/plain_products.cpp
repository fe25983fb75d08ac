#include "vector_products.h"

#include "plain_kinds.h"
#include "vector_kernels.h"

namespace kernels {

void multiply_by_plain_vectors(const Type& type, const Product& call, int num_threads) {
  multiply_by<VectorKernels>(type, call, num_threads);
}

}  // namespace kernels
