#include "frames.h"

#if defined(Py_LIMITED_API) && !defined(_WIN32)
#include <dlfcn.h>
#endif
#ifdef Py_LIMITED_API
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#endif

namespace plimsoll::python {
namespace {

#if defined(PLIMSOLL_KNOWS_FRAMES)

FrameReader find_reader() { return &plimsoll_read_frames; }

#elif defined(Py_LIMITED_API) && !defined(_WIN32)

// Returns the frame reader for the running version of Python. The reader is in a separate library,
// in the folder of this library. Returns null if there is no reader for this version.
FrameReader find_reader() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&gather_frames), &here) == 0) return nullptr;
  std::string path = here.dli_fname;
  path.resize(path.rfind('/') + 1);
  path += "libplimsoll_frames_3." + std::to_string((Py_Version >> 16) & 0xFF) + ".so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<FrameReader>(dlsym(library, "plimsoll_read_frames"));
}

#else

FrameReader find_reader() { return nullptr; }

#endif

#ifdef Py_LIMITED_API

// Returns an attribute of a frame. The stable ABI lacks PyFrame_GetBack and PyFrame_GetLasti, so
// this file reads the attributes `f_back` and `f_lasti`. Reading them runs no Python code.
PyObject* attribute(PyFrameObject* frame, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), name);
  if (found == nullptr) PyErr_Clear();
  return found;
}

PyFrameObject* frame_behind(PyFrameObject* frame) {
  static PyObject* const name = PyUnicode_InternFromString("f_back");
  PyObject* const back = attribute(frame, name);
  if (back != Py_None) return reinterpret_cast<PyFrameObject*>(back);
  Py_DECREF(back);
  return nullptr;
}

int instruction_of(PyFrameObject* frame) {
  static PyObject* const name = PyUnicode_InternFromString("f_lasti");
  PyObject* const found = attribute(frame, name);
  const long offset = found != nullptr ? PyLong_AsLong(found) : -1;
  Py_XDECREF(found);
  return static_cast<int>(offset);
}

#else

PyFrameObject* frame_behind(PyFrameObject* frame) { return PyFrame_GetBack(frame); }
int instruction_of(PyFrameObject* frame) { return PyFrame_GetLasti(frame); }

#endif

// Reads the calling thread's frames through Python's C API.
void ask_for_frames(Stack& stack) {
  stack.clear();
  if (PyGILState_GetThisThreadState() == nullptr) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    stack.push_back({code, instruction_of(frame)});
    Py_DECREF(reinterpret_cast<PyObject*>(code));  // the frame keeps the code object alive
    PyFrameObject* const back = frame_behind(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  PyGILState_Release(state);
}

}  // namespace

void gather_frames(Stack& stack) {
  static const FrameReader read = find_reader();
  if (read == nullptr) return ask_for_frames(stack);
  stack.resize(stack.capacity());
  const std::size_t count = read(stack.data(), stack.size());
  if (count > stack.size()) {
    stack.resize(count);
    read(stack.data(), count);
  }
  stack.resize(count);
}

#ifdef Py_LIMITED_API

int line_of(const Frame& frame) {
  // `co_lines` yields ranges of bytecode offsets, each with its line or None.
  const nanobind::handle code(reinterpret_cast<PyObject*>(frame.code));
  for (const nanobind::handle range : code.attr("co_lines")()) {
    const auto [begin, end, line] = nanobind::cast<std::tuple<int, int, nanobind::object>>(range);
    if (begin <= frame.instruction && frame.instruction < end) {
      return line.is_none() ? -1 : nanobind::cast<int>(line);
    }
  }
  return -1;
}

#else

int line_of(const Frame& frame) { return PyCode_Addr2Line(frame.code, frame.instruction); }

#endif

}  // namespace plimsoll::python
