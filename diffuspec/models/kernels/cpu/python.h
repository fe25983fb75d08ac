// Python support of the module: reading arguments, and releasing the interpreter's lock.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>

namespace kernels {

// Reads the arguments one after another.
class Arguments {
 public:
  Arguments(PyObject* const* arguments, Py_ssize_t count) : next_(arguments), left_(count) {}

  template <class T>
  void operator()(T*& address) { address = static_cast<T*>(PyLong_AsVoidPtr(take())); }
  void operator()(int& number) { number = static_cast<int>(PyLong_AsLongLong(take())); }
  void operator()(int64_t& number) { number = PyLong_AsLongLong(take()); }
  void operator()(float& number) { number = static_cast<float>(PyFloat_AsDouble(take())); }

  template <class... Values>
  bool read(Values&... values) {  // false: a Python error is set
    ((*this)(values), ...);
    if (left_ != 0 && !PyErr_Occurred())
      PyErr_Format(PyExc_TypeError, "expected %zd arguments", sizeof...(values));
    return !PyErr_Occurred();
  }

 private:
  PyObject* take() { return --left_ >= 0 ? *next_++ : Py_None; }

  PyObject* const* next_;
  Py_ssize_t left_;
};

template <class Work>
PyObject* without_lock(Work work) {
  bool has_failed = false;
  Py_BEGIN_ALLOW_THREADS
  try {
    work();
  } catch (const std::exception&) {  // no memory, or no thread
    has_failed = true;
  }
  Py_END_ALLOW_THREADS
  if (has_failed) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

}  // namespace kernels
