#include "device/callback.h"

#include <cstddef>

// The process that loads this library defines these functions of the Python interpreter.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int state);
void* PyObject_CallFunctionObjArgs(void* function, ...);
void* PyBytes_FromStringAndSize(const char* bytes, std::ptrdiff_t size);
int PyBytes_AsStringAndSize(void* object, char** bytes, std::ptrdiff_t* size);
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

// Makes this thread raise the current Python exception when it next runs Python code. Only the
// exception's type can be passed on, so the message is printed here.
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

std::string Callback::ask(std::string_view bytes) const {
  const int state = PyGILState_Ensure();
  void* const asked =
      PyBytes_FromStringAndSize(bytes.data(), static_cast<std::ptrdiff_t>(bytes.size()));
  void* const result = PyObject_CallFunctionObjArgs(function_, asked, nullptr);
  Py_DecRef(asked);
  char* answer = nullptr;
  std::ptrdiff_t size = 0;
  std::string copy;
  if (result != nullptr && PyBytes_AsStringAndSize(result, &answer, &size) == 0) {
    copy.assign(answer, static_cast<std::size_t>(size));
  } else {
    raise_later(function_);
  }
  if (result != nullptr) Py_DecRef(result);
  PyGILState_Release(state);
  return copy;
}

}  // namespace plimsoll::simulated
