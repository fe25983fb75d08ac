#include "layer.h"

#include <algorithm>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "numbers.h"

namespace kernels {
namespace {

// rows of a prompt processed at a time, so that intermediate results stay in the cache
constexpr int kRowsOfThread = 256;
// more rows than this are divided among threads; otherwise each product uses threads
constexpr int kWorthAThread = 32;

// Runs rows through layers.
class Decoding {
 public:
  explicit Decoding(const Batch& batch) : batch_(batch), type_(*batch.type) {}

  // Runs the inputs, which may be the batch's outputs, through a layer into the outputs.
  void run(const Layer& layer, const void* inputs) {
    layer_ = &layer;
    inputs_ = inputs;
    hidden_ = layer.qkv.num_inputs;
    width_ = layer.qkv.num_outputs;
    for (int i = 0, end; i < batch_.num_pieces; i = end) {
      end = end_of_chunk(i);
      run(i, end);
    }
  }

 private:
  using Bytes = std::vector<char>;

  // Successive rows, counted from the chunk's first, that one thread runs through a part of the
  // layer.
  struct Rows {
    int first, count, num_threads;
  };

  // Successive pieces whose rows are computed together.
  int end_of_chunk(int piece) const {
    const int most = kRowsOfThread * batch_.num_threads;
    int num_rows = 0;
    do num_rows += batch_.pieces[piece++].num_rows;
    while (piece < batch_.num_pieces && num_rows + batch_.pieces[piece].num_rows <= most);
    return piece;
  }

  void run(int first_piece, int end_piece) {
    const Piece& last = batch_.pieces[end_piece - 1];
    first_row_ = batch_.pieces[first_piece].first_row;
    num_rows_ = last.first_row + last.num_rows - first_row_;
    fit(normed_, hidden_);
    fit(qkv_, width_);
    fit(attended_, layer_->output.num_inputs);
    fit(added_, hidden_);
    fit(sums_, hidden_);
    fit(gates_, layer_->gate_up.num_outputs);
    fit(gated_, layer_->down.num_inputs);
    for_each_part([&](const Rows& rows) { make_heads(rows); });
    attend(first_piece, end_piece);
    for_each_part([&](const Rows& rows) { use_attended(rows); });
  }

  void fit(Bytes& rows, int width) const { rows.resize(size_t(num_rows_) * width * type_.size); }

  // Calls `compute(rows)` for all rows, in as many threads as are worthwhile.
  template <class Compute>
  void for_each_part(Compute compute) const {
    const int num_parts = batch_.num_threads;
    if (num_parts == 1 || num_rows_ < num_parts * kWorthAThread)
      return compute(Rows{0, num_rows_, batch_.num_threads});
#pragma omp parallel for num_threads(num_parts)
    for (int part = 0; part < num_parts; ++part) {
      const int first = int64_t{num_rows_} * part / num_parts;
      const int end = int64_t{num_rows_} * (part + 1) / num_parts;
      compute(Rows{first, end - first, 1});
    }
  }

  // Computes queries, keys and values.
  void make_heads(const Rows& rows) {
    const Layer& layer = *layer_;
    const char* inputs = of_batch(inputs_, rows, hidden_);
    if (layer.input_norm) {
      norm(rows, inputs, nullptr, layer.input_norm, nullptr);
      inputs = of(normed_, rows, hidden_);
    }
    multiply(rows, layer.qkv, inputs, qkv_);
    norm_heads(rows, layer.query_norm, 0, layer.num_heads);
    norm_heads(rows, layer.key_norm, layer.num_heads, layer.num_kv_heads);
    rotate(type_, {of(qkv_, rows, width_), of_batch(batch_.cos, rows, layer.dim),
                   of_batch(batch_.sin, rows, layer.dim), rows.count, width_,
                   layer.num_heads + layer.num_kv_heads, layer.dim});
  }

  // Computes everything after attention.
  void use_attended(const Rows& rows) {
    const Layer& layer = *layer_;
    char *added = of(added_, rows, hidden_), *sums = of(sums_, rows, hidden_);
    char *gates = of(gates_, rows, layer.gate_up.num_outputs);
    char *gated = of(gated_, rows, layer.down.num_inputs);
    multiply(rows, layer.output, of(attended_, rows, layer.output.num_inputs), added_);
    norm(rows, of_batch(inputs_, rows, hidden_), added, layer.output_norm, sums);
    multiply(rows, layer.gate_up, of(normed_, rows, hidden_), gates_);
    gate(type_, {gates, gated, rows.count, layer.down.num_inputs});
    multiply(rows, layer.down, gated, added_);
    char* outputs = at(batch_.outputs, type_, int64_t{first_row_ + rows.first} * hidden_);
    add(type_, {sums, added, outputs, rows.count * hidden_});
  }

  // The given rows of the chunk's or the batch's array.
  char* of(Bytes& chunk, const Rows& rows, int width) const {
    return at(chunk.data(), type_, int64_t{rows.first} * width);
  }
  const char* of_batch(const void* all, const Rows& rows, int width) const {
    return at(all, type_, int64_t{first_row_ + rows.first} * width);
  }

  void norm(const Rows& rows, const void* inputs, const void* added, const void* weight, void* sums) {
    normalise(type_, {inputs, added, weight, sums, of(normed_, rows, hidden_), rows.count, hidden_,
                      layer_->epsilon});
  }

  void norm_heads(const Rows& rows, const void* weight, int first, int count) {
    for (int row = 0; weight && row < rows.count; ++row) {
      char* heads = of(qkv_, {rows.first + row, 1, 1}, width_) + first * layer_->dim * type_.size;
      normalise(type_, {heads, nullptr, weight, nullptr, heads, count, layer_->dim, layer_->epsilon});
    }
  }

  void multiply(const Rows& rows, const Matrix& matrix, const void* inputs, Bytes& outputs) const {
    const char* numbers = static_cast<const char*>(inputs);
    kernels::multiply(type_, {matrix, numbers, of(outputs, rows, matrix.num_outputs), rows.count},
                   rows.num_threads);
  }

  // Pieces write all their rows before any of them reads, unless they write the same rows.
  void attend(int first_piece, int end_piece) {
    for (int i = first_piece; i < end_piece; ++i) {
      if (i == first_piece || writes_rows_of(first_piece, i)) {
        flush();
        first_piece = i;
      }
      calls_.push_back(call_of(batch_.pieces[i]));
    }
    flush();
  }

  void flush() {
    kernels::attend(type_, calls_.data(), static_cast<int>(calls_.size()), batch_.num_threads);
    calls_.clear();
  }

  // Whether a piece writes rows of the cache that an earlier piece from `first` on also writes.
  bool writes_rows_of(int first, int piece) const {
    const Piece& own = batch_.pieces[piece];
    return std::any_of(batch_.pieces + first, batch_.pieces + piece, [&](const Piece& other) {
      return other.pages == own.pages && other.start < own.start + own.num_rows &&
             own.start < other.start + other.num_rows;
    });
  }

  // This layer's part of a piece's keys or values.
  char* cached(char* of_first_layer, const Piece& piece) const {
    return of_first_layer + layer_->index * piece.layer_stride;
  }

  Attention call_of(const Piece& piece) {
    const int64_t dim = layer_->dim, first = piece.first_row - first_row_;
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
    call.pages = piece.pages;
    call.page_stride = piece.page_stride;
    call.cache_head_stride = piece.head_stride;
    call.has_transposed_keys = piece.has_transposed_keys;
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
    return call;
  }

  const Batch& batch_;
  const Type& type_;
  const Layer* layer_ = nullptr;
  const void* inputs_ = nullptr;
  int hidden_ = 0, width_ = 0, first_row_ = 0, num_rows_ = 0;
  Bytes normed_, qkv_, attended_, added_, sums_, gates_, gated_;
  std::vector<Attention> calls_;
};

}  // namespace

void decode(const Layer* layers, int num_layers, const Batch& batch) {
  Decoding decoding(batch);
  for (int i = 0; i < num_layers; ++i) decoding.run(layers[i], i == 0 ? batch.inputs : batch.outputs);
}

}  // namespace kernels
