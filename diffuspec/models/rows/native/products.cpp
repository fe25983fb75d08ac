#include "products.h"

#include "level.h"
#include "quantized_products.h"
#include "tile_products.h"
#include "vector_products.h"

namespace rows {

void multiply(const Type& type, const Product& call, int num_threads) {
  if (!call.num_rows) return;
  if (call.matrix.num_parts) multiply_quantized(type, call, num_threads);
  else if (&type == &kTypes[kBfloat16] && has_tiles()) multiply_by_tiles(call, num_threads);
  else if (level() >= kWide) multiply_by_wide_vectors(type, call, num_threads);
  else multiply_by_narrow_vectors(type, call, num_threads);
}

}  // namespace rows
