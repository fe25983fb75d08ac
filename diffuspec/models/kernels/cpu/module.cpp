// Operations over the rows of one forward on a CPU, as a Python module.
//
// A row's result is bitwise independent of the other rows: each goes through the same operations in
// the same order, wherever it is. `operations.py`, `products.py` and `decoder.py` document each
// function; arguments are not checked here.

#include "attention.h"
#include "elementwise.h"
#include "largest.h"
#include "layer.h"
#include "level.h"
#include "products.h"
#include "python.h"

namespace kernels {
namespace {

PyObject* run_normalise(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type;
  Norm call;
  if (!Arguments(arguments, count)
           .read(type, call.inputs, call.added, call.weight, call.sums, call.outputs,
                 call.num_rows, call.width, call.epsilon))
    return nullptr;
  return without_lock([&] { normalise(kTypes[type], call); });
}

PyObject* run_rotate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type;
  Rotation call;
  if (!Arguments(arguments, count)
           .read(type, call.rows, call.cos, call.sin, call.num_rows, call.row_stride,
                 call.num_heads, call.dim))
    return nullptr;
  return without_lock([&] { rotate(kTypes[type], call); });
}

PyObject* run_gate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type;
  Gate call;
  if (!Arguments(arguments, count)
           .read(type, call.inputs, call.outputs, call.num_rows, call.width))
    return nullptr;
  return without_lock([&] { gate(kTypes[type], call); });
}

PyObject* run_attend(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type, num_threads, has_transposed_keys;
  Attention call;
  Lists& lists = call.lists;
  if (!Arguments(arguments, count)
           .read(type, num_threads, call.queries, call.query_head_stride, call.query_row_stride,
                 call.new_keys, call.new_values, call.new_head_stride, call.new_row_stride,
                 call.keys, call.values, call.pages, call.page_stride, call.cache_head_stride,
                 call.outputs, call.num_rows,
                 call.num_heads, call.num_kv_heads, call.dim, call.start, call.base, lists.order,
                 lists.starts, lists.counts, lists.columns, lists.positions, call.scaling,
                 call.window, has_transposed_keys))
    return nullptr;
  call.has_transposed_keys = has_transposed_keys;
  return without_lock([&] { attend(kTypes[type], &call, 1, num_threads); });
}

PyObject* run_multiply(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int type, num_threads;
  const Matrix* matrix;
  Product call;
  if (!Arguments(arguments, count)
           .read(type, num_threads, matrix, call.inputs, call.outputs, call.num_rows))
    return nullptr;
  call.matrix = *matrix;
  return without_lock([&] { multiply(kTypes[type], call, num_threads); });
}

PyObject* run_decode(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  const Layer* layers;
  int type, num_layers;
  Batch batch;
  if (!Arguments(arguments, count)
           .read(type, batch.num_threads, layers, num_layers, batch.inputs, batch.cos, batch.sin,
                 batch.outputs, batch.num_rows, batch.pieces, batch.num_pieces))
    return nullptr;
  batch.type = &kTypes[type];
  return without_lock([&] { decode(layers, num_layers, batch); });
}

PyObject* run_find_largest(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Largest call;
  if (!Arguments(arguments, count)
           .read(call.logits, call.columns, call.logprobs, call.num_rows, call.width, call.count))
    return nullptr;
  return without_lock([&] { find_largest(call); });
}

PyObject* run_has_tiles(PyObject*, PyObject* const*, Py_ssize_t) {
  return PyBool_FromLong(has_tiles());
}

PyObject* run_own_level(PyObject*, PyObject* const*, Py_ssize_t) {
  return PyLong_FromLong(own_level());
}

PyObject* run_level(PyObject*, PyObject* const*, Py_ssize_t) { return PyLong_FromLong(level()); }

PyObject* run_use_level(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int lower;
  if (!Arguments(arguments, count).read(lower)) return nullptr;
  use_level(static_cast<Level>(lower));
  Py_RETURN_NONE;
}

PyObject* run_has_bfloat16_vectors(PyObject*, PyObject* const*, Py_ssize_t) {
  return PyBool_FromLong(has_bfloat16_vectors());
}

#define METHOD(name) {#name, reinterpret_cast<PyCFunction>(run_##name), METH_FASTCALL, nullptr}
PyMethodDef kMethods[] = {
    METHOD(normalise), METHOD(rotate), METHOD(gate), METHOD(attend), METHOD(multiply),
    METHOD(decode), METHOD(find_largest), METHOD(has_tiles),
    METHOD(has_bfloat16_vectors), METHOD(own_level), METHOD(level), METHOD(use_level),
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_cpu", nullptr, -1, kMethods,
                       nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace kernels

PyMODINIT_FUNC PyInit__cpu() { return PyModule_Create(&kernels::kModule); }
