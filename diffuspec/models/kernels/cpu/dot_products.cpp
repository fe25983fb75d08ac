#include "vector_products.h"

#include "level.h"

#if HAS_DOTS
#define USES_DOTS 1
#define ON_ONE_LEVEL ON_DOTS
#include "plain_kinds.h"
#include "vector_kernels.h"
#endif

namespace kernels {

#if HAS_DOTS
void multiply_by_dots(const Type& type, const Product& call, int num_threads) {
  multiply_by<VectorKernels>(type, call, num_threads);
}
#else
void multiply_by_dots(const Type&, const Product&, int) {}
#endif

}  // namespace kernels
