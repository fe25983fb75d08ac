#include "layer.h"

#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "numbers.h"

namespace rows {
namespace {

class Decoding {
 public:
  explicit Decoding(const Batch& batch) : batch_(batch), type_(*batch.type) {}

  // Takes the inputs, which may be the batch's outputs, through a layer, into the outputs.
  void run(const Layer& layer, const void* inputs) {
    layer_ = &layer;
    hidden_ = layer.qkv.num_inputs;
    width_ = layer.qkv.num_outputs;
    const void* normed = layer.input_norm ? norm(inputs, nullptr, layer.input_norm, nullptr) : inputs;
    multiply(layer.qkv, normed, qkv_);
    norm_heads(layer.query_norm, 0, layer.num_heads);
    norm_heads(layer.key_norm, layer.num_heads, layer.num_kv_heads);
    rotate(type_, {qkv_.data(), batch_.cos, batch_.sin, batch_.num_rows, width_,
                   layer.num_heads + layer.num_kv_heads, layer.dim});
    fit(attended_, layer.output.num_inputs);
    for (int i = 0; i < batch_.num_pieces; ++i) attend(i);
    multiply(layer.output, attended_.data(), added_);
    multiply(layer.gate_up, norm(inputs, added_.data(), layer.output_norm, fit(sums_, hidden_)), gates_);
    fit(gated_, layer.down.num_inputs);
    gate(type_, {gates_.data(), gated_.data(), batch_.num_rows, layer.down.num_inputs});
    multiply(layer.down, gated_.data(), added_);
    add(type_, {sums_.data(), added_.data(), batch_.outputs, batch_.num_rows * hidden_});
  }

 private:
  using Bytes = std::vector<char>;

  char* fit(Bytes& rows, int width) const {
    rows.resize(size_t(batch_.num_rows) * width * type_.size);
    return rows.data();
  }

  const void* norm(const void* inputs, const void* added, const void* weight, void* sums) {
    normalise(type_, {inputs, added, weight, sums, fit(normed_, hidden_), batch_.num_rows, hidden_,
                      layer_->epsilon});
    return normed_.data();
  }

  void norm_heads(const void* weight, int first, int count) {
    for (int row = 0; weight && row < batch_.num_rows; ++row) {
      char* heads = at(qkv_.data(), type_, int64_t{row} * width_ + first * layer_->dim);
      normalise(type_, {heads, nullptr, weight, nullptr, heads, count, layer_->dim, layer_->epsilon});
    }
  }

  void multiply(const Matrix& matrix, const void* inputs, Bytes& outputs) const {
    const char* numbers = static_cast<const char*>(inputs);
    rows::multiply(type_, {matrix, numbers, fit(outputs, matrix.num_outputs), batch_.num_rows},
                   batch_.num_threads);
  }

  // This layer's part of a piece's keys or values.
  char* cached(char* of_first_layer, const Piece& piece) const {
    return of_first_layer + layer_->index * piece.layer_stride;
  }

  void attend(int index) {
    const Piece& piece = batch_.pieces[index];
    const int64_t dim = layer_->dim, first = piece.first_row;
    const int64_t num_queries = layer_->num_heads * dim, num_keys = layer_->num_kv_heads * dim;
    const char* row = at(qkv_.data(), type_, first * width_);
    Attention call;
    call.queries = row;
    call.new_keys = at(row, type_, num_queries);
    call.new_values = at(row, type_, num_queries + num_keys);
    call.query_head_stride = call.new_head_stride = dim;
    call.query_row_stride = call.new_row_stride = width_;
    call.keys = cached(piece.keys, piece);
    call.values = cached(piece.values, piece);
    if (index + 1 < batch_.num_pieces) {
      const Piece& next = batch_.pieces[index + 1];
      call.next_keys = cached(next.keys, next);
      call.next_values = cached(next.values, next);
    }
    call.cache_head_stride = piece.head_stride;
    call.has_turned_keys = piece.has_turned_keys;
    call.outputs = at(attended_.data(), type_, first * num_queries);
    call.num_rows = piece.num_rows;
    call.num_heads = layer_->num_heads;
    call.num_kv_heads = layer_->num_kv_heads;
    call.dim = layer_->dim;
    call.start = piece.start;
    call.base = piece.base;
    call.lists = piece.lists;
    call.scaling = layer_->scaling;
    call.window = layer_->window;
    rows::attend(type_, call, batch_.num_threads);
  }

  const Batch& batch_;
  const Type& type_;
  const Layer* layer_ = nullptr;
  int hidden_ = 0, width_ = 0;
  Bytes normed_, qkv_, attended_, added_, sums_, gates_, gated_;
};

}  // namespace

void decode(const Layer* layers, int num_layers, const Batch& batch) {
  Decoding decoding(batch);
  for (int i = 0; i < num_layers; ++i) decoding.run(layers[i], i == 0 ? batch.inputs : batch.outputs);
}

}  // namespace rows
