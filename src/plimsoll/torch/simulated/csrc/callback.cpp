#include "callback.h"

// Of the interpreter that this library is loaded into.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int state);
void* PyObject_CallFunction(void* function, const char* format, ...);
int PyObject_IsTrue(void* object);
void Py_DecRef(void* object);
void* PyErr_Occurred();
int PyErr_ExceptionMatches(void* type);
void PyErr_Clear();
void PyErr_WriteUnraisable(void* object);
unsigned long PyThread_get_thread_ident();
int PyThreadState_SetAsyncExc(unsigned long thread, void* exception);
extern void* PyExc_Exception;
}

namespace plimsoll::simulated {
namespace {

// Only the type can be raised later, so what an error says is printed here.
void raise_later(void* function) {
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), PyErr_Occurred());
  if (PyErr_ExceptionMatches(PyExc_Exception) != 0) {
    PyErr_WriteUnraisable(function);
  } else {
    PyErr_Clear();
  }
}

template <typename... Arguments>
bool call(void* function, const char* format, Arguments... arguments) {
  const int state = PyGILState_Ensure();
  void* const result = PyObject_CallFunction(function, format, arguments...);
  const int truth = result == nullptr ? -1 : PyObject_IsTrue(result);
  if (result != nullptr) Py_DecRef(result);
  if (truth < 0) raise_later(function);
  PyGILState_Release(state);
  return truth > 0;
}

}  // namespace

bool Callback::operator()() const { return call(function_, nullptr); }

bool Callback::operator()(std::uint64_t argument) const {
  return call(function_, "K", static_cast<unsigned long long>(argument));
}

bool Callback::operator()(std::uint64_t first, std::uint64_t second) const {
  return call(function_, "KK", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(second));
}

}  // namespace plimsoll::simulated
