// Scores of an n-gram model: a trie in KenLM's layout, mapped from a file or made in memory.
//
// N-grams are stored by their last word first: a record's children are the n-grams with one more
// word at the front. `trie.py` describes the structures and makes them; states come from here only.
// A damaged file gives wrong scores, but no access outside of it: ranges are compared with counts.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int kMaxContext = 5;
constexpr double kLn10 = 2.302585092994045684;

struct Unigram {
  float prob, backoff;  // log10
  uint64_t next;
};

struct Table {  // the n-grams of one order above 1, in records of `bits` bits
  const uint8_t* records;
  uint64_t count, bits, word_bits;
  uint64_t prob_at, prob_bits;  // place within a record, and width; without `probs` 31: the float
  const float* probs;           // what a number stands for
  uint64_t backoff_at, backoff_bits;
  const float* backoffs;
  uint64_t next_at, next_bits;  // low bits of the first child's index
  const uint64_t* high;         // first record with each value of the high bits; may be null
  uint64_t num_high;
};

struct Model {
  const Unigram* unigrams;  // [num_words + 1]
  uint64_t num_words;
  const uint32_t* word_of;  // [vocab_size] index of each token id; 0: unknown
  uint64_t vocab_size;
  uint64_t order;
  Table tables[kMaxContext];
};

struct Word {
  uint32_t index;
  float backoff;  // of the n-gram from this word to the last one
};

struct State {  // the context, last word first
  size_t length = 0;
  Word words[kMaxContext];
};

struct Range {
  uint64_t begin, end;
};

uint64_t read(const Table& table, uint64_t record, uint64_t at, uint64_t bits) {
  at += record * table.bits;
  uint64_t word;
  std::memcpy(&word, table.records + at / 8, sizeof word);
  return (word >> (at % 8)) & ((uint64_t(1) << bits) - 1);
}

float read_float(const Table& table, uint64_t record, uint64_t at, uint64_t bits, uint32_t sign,
                 const float* values) {
  uint64_t number = read(table, record, at, bits);
  if (values != nullptr) return values[number];
  uint32_t encoded = static_cast<uint32_t>(number) | sign;
  float value;
  std::memcpy(&value, &encoded, sizeof value);
  return value;
}

float prob_of(const Table& table, uint64_t record) {
  return read_float(table, record, table.prob_at, table.prob_bits, 0x80000000u, table.probs);
}

float backoff_of(const Table& table, uint64_t record) {
  return read_float(table, record, table.backoff_at, table.backoff_bits, 0, table.backoffs);
}

uint64_t next_of(const Table& table, uint64_t record) {
  uint64_t low = read(table, record, table.next_at, table.next_bits);
  if (table.high == nullptr) return low;
  const uint64_t* after = std::upper_bound(table.high, table.high + table.num_high, record);
  return (uint64_t(std::max<int64_t>(after - table.high - 1, 0)) << table.next_bits) | low;
}

// Returns whether the range has the word, and its record.
bool find(const Table& table, Range range, uint64_t word, uint64_t& record) {
  if (range.end > table.count) return false;
  while (range.begin < range.end) {
    record = (range.begin + range.end) / 2;
    uint64_t here = read(table, record, 0, table.word_bits);
    if (here == word) return true;
    (here < word ? range.begin : range.end) = here < word ? record + 1 : record;
  }
  return false;
}

// Whether longer n-grams may begin with one of this back-off: KenLM marks others by -0.
bool has_extension(float backoff) {
  uint32_t bits;
  std::memcpy(&bits, &backoff, sizeof bits);
  return bits != 0x80000000u;
}

// Returns log10 P(word | state), and the state after the word: as long as any continuation needs.
float score(const Model& model, const State& state, uint32_t word, State& after) {
  const Unigram* unigram = model.unigrams + word;
  Range range{unigram->next, unigram[1].next};
  float prob = unigram->prob;
  size_t matched = 1;  // words of the longest known n-gram
  after.words[0] = {word, unigram->backoff};
  after.length = has_extension(unigram->backoff);
  for (size_t i = 0; i < state.length; ++i) {
    const Table& table = model.tables[i];
    uint64_t record;
    if (!find(table, range, state.words[i].index, record)) break;
    prob = prob_of(table, record);
    matched = i + 2;
    if (matched == model.order) break;
    range = {next_of(table, record), next_of(table, record + 1)};
    after.words[i + 1] = {state.words[i].index, backoff_of(table, record)};
    if (has_extension(after.words[i + 1].backoff)) after.length = matched;
  }
  for (size_t i = matched - 1; i < state.length; ++i) prob += state.words[i].backoff;
  return prob;
}

bool read_state(const Model& model, PyObject* bytes, State& state) {
  char* content;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(bytes, &content, &size) < 0) return false;
  state.length = size / sizeof(Word);
  bool is_ours = size % sizeof(Word) == 0 && state.length < model.order;
  if (is_ours) std::memcpy(state.words, content, size);
  if (!is_ours) PyErr_SetString(PyExc_ValueError, "not a state of this model");
  return is_ours;
}

bool read_words(const Model& model, PyObject* token_ids, std::vector<uint32_t>& words) {
  words.resize(PySequence_Fast_GET_SIZE(token_ids));
  for (size_t i = 0; i < words.size(); ++i) {
    long long id = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(token_ids, i));
    if (id == -1 && PyErr_Occurred()) return false;
    if (id < 0 || static_cast<uint64_t>(id) >= model.vocab_size) {
      PyErr_Format(PyExc_IndexError, "token id %lld is outside the vocabulary of %llu ids", id,
                   static_cast<unsigned long long>(model.vocab_size));
      return false;
    }
    words[i] = model.word_of[id];
  }
  return true;
}

// Fills a row of logprobs and one of states. Returns false with a Python error.
bool fill(const Model& model, const State& state, const std::vector<uint32_t>& words,
          PyObject* logprobs, PyObject* states) {
  for (size_t i = 0; i < words.size(); ++i) {
    State after;
    double logprob = kLn10 * score(model, state, words[i], after);
    PyObject* number = PyFloat_FromDouble(logprob);
    PyObject* bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(after.words),
                                                after.length * sizeof(Word));
    if (number == nullptr || bytes == nullptr) {
      Py_XDECREF(number);
      Py_XDECREF(bytes);
      return false;
    }
    PyList_SET_ITEM(logprobs, i, number);
    PyList_SET_ITEM(states, i, bytes);
  }
  return true;
}

PyObject* expand_all(const Model& model, PyObject* states, PyObject* token_ids) {
  Py_ssize_t count = PySequence_Fast_GET_SIZE(states);
  std::vector<uint32_t> words;
  if (!read_words(model, token_ids, words)) return nullptr;
  PyObject* rows = PyList_New(count);
  PyObject* afters = PyList_New(count);
  bool is_good = rows != nullptr && afters != nullptr;
  for (Py_ssize_t i = 0; i < count && is_good; ++i) {
    State state;
    PyObject* row = PyList_New(words.size());
    PyObject* next = PyList_New(words.size());
    is_good = row != nullptr && next != nullptr &&
              read_state(model, PySequence_Fast_GET_ITEM(states, i), state) &&
              fill(model, state, words, row, next);
    PyList_SET_ITEM(rows, i, row);
    PyList_SET_ITEM(afters, i, next);
  }
  if (is_good) return Py_BuildValue("NN", rows, afters);
  Py_XDECREF(rows);
  Py_XDECREF(afters);
  return nullptr;
}

PyObject* run_expand(PyObject*, PyObject* arguments) {
  unsigned long long address;
  PyObject *states, *token_ids;
  if (!PyArg_ParseTuple(arguments, "KOO", &address, &states, &token_ids)) return nullptr;
  states = PySequence_Fast(states, "states are a sequence");
  if (states == nullptr) return nullptr;
  PyObject* result = nullptr;
  if ((token_ids = PySequence_Fast(token_ids, "token ids are a sequence")) != nullptr) {
    try {
      result = expand_all(*reinterpret_cast<const Model*>(address), states, token_ids);
    } catch (const std::exception&) {
      PyErr_NoMemory();
    }
    Py_DECREF(token_ids);
  }
  Py_DECREF(states);
  return result;
}

PyMethodDef kMethods[] = {{"expand", run_expand, METH_VARARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_trie", nullptr, -1, kMethods,
                       nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__trie() { return PyModule_Create(&kModule); }
