#include "layer.h"

#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "numbers.h"

namespace rows {
namespace {

class Decoding {
 public:
  Decoding(const Layer& layer, const Batch& batch)
      : layer_(layer), batch_(batch), type_(*batch.type), hidden_(layer.qkv.num_inputs), width_(layer.qkv.num_outputs),
        normed_(rows_of(hidden_)), qkv_(rows_of(width_)),
        attended_(rows_of(layer.output.num_inputs)), added_(rows_of(hidden_)),
        sums_(rows_of(hidden_)), gates_(rows_of(layer.gate_up.num_outputs)),
        gated_(rows_of(layer.down.num_inputs)) {}

  void run() {
    if (layer_.input_norm) norm(batch_.inputs, nullptr, layer_.input_norm, nullptr);
    multiply(layer_.qkv, layer_.input_norm ? normed_.data() : batch_.inputs, qkv_);
    norm_heads(layer_.query_norm, 0, layer_.num_heads);
    norm_heads(layer_.key_norm, layer_.num_heads, layer_.num_kv_heads);
    rotate(type_, {qkv_.data(), batch_.cos, batch_.sin, batch_.num_rows, width_,
                   layer_.num_heads + layer_.num_kv_heads, layer_.dim});
    for (int i = 0; i < batch_.num_pieces; ++i) attend(batch_.pieces[i]);
    multiply(layer_.output, attended_.data(), added_);
    norm(batch_.inputs, added_.data(), layer_.output_norm, sums_.data());
    multiply(layer_.gate_up, normed_.data(), gates_);
    gate(type_, {gates_.data(), gated_.data(), batch_.num_rows, layer_.down.num_inputs});
    multiply(layer_.down, gated_.data(), added_);
    add(type_, {sums_.data(), added_.data(), batch_.outputs, batch_.num_rows * hidden_});
  }

 private:
  using Bytes = std::vector<char>;

  Bytes rows_of(int width) const { return Bytes(size_t(batch_.num_rows) * width * type_.size); }

  void norm(const void* inputs, const void* added, const void* weight, void* sums) {
    normalise(type_, {inputs, added, weight, sums, normed_.data(), batch_.num_rows, hidden_,
                      layer_.epsilon});
  }

  void norm_heads(const void* weight, int first, int count) {
    for (int row = 0; weight && row < batch_.num_rows; ++row) {
      char* heads = at(qkv_.data(), type_, int64_t{row} * width_ + first * layer_.dim);
      normalise(type_, {heads, nullptr, weight, nullptr, heads, count, layer_.dim, layer_.epsilon});
    }
  }

  void multiply(const Matrix& matrix, const void* inputs, Bytes& outputs) const {
    const char* numbers = static_cast<const char*>(inputs);
    rows::multiply(type_, {matrix, numbers, outputs.data(), batch_.num_rows}, batch_.num_threads);
  }

  void attend(const Piece& piece) {
    const int64_t dim = layer_.dim, first = piece.first_row;
    const int64_t num_queries = layer_.num_heads * dim, num_keys = layer_.num_kv_heads * dim;
    const char* row = at(qkv_.data(), type_, first * width_);
    Attention call;
    call.queries = row;
    call.new_keys = at(row, type_, num_queries);
    call.new_values = at(row, type_, num_queries + num_keys);
    call.query_head_stride = call.new_head_stride = dim;
    call.query_row_stride = call.new_row_stride = width_;
    call.keys = piece.keys + layer_.index * piece.layer_stride;
    call.values = piece.values + layer_.index * piece.layer_stride;
    call.cache_head_stride = piece.head_stride;
    call.outputs = at(attended_.data(), type_, first * num_queries);
    call.num_rows = piece.num_rows;
    call.num_heads = layer_.num_heads;
    call.num_kv_heads = layer_.num_kv_heads;
    call.dim = layer_.dim;
    call.start = piece.start;
    call.base = piece.base;
    call.lists = piece.lists;
    call.scaling = layer_.scaling;
    call.window = layer_.window;
    rows::attend(type_, call, batch_.num_threads);
  }

  const Layer& layer_;
  const Batch& batch_;
  const Type& type_;
  const int hidden_, width_;
  Bytes normed_, qkv_, attended_, added_, sums_, gates_, gated_;
};

}  // namespace

void decode(const Layer* layers, int num_layers, const Batch& batch) {
  const size_t size = size_t(batch.num_rows) * layers->qkv.num_inputs * batch.type->size;
  std::vector<char> between[2] = {std::vector<char>(size), std::vector<char>(size)};
  Batch step = batch;
  for (int i = 0; i < num_layers; ++i) {
    step.outputs = i + 1 < num_layers ? between[i % 2].data() : batch.outputs;
    Decoding(layers[i], step).run();
    step.inputs = step.outputs;
  }
}

}  // namespace rows
