// Reads a thread's frames directly from the interpreter's memory. The layout of frames depends on
// the version of Python. This code knows the layouts of some versions, and is compiled for each of
// them separately. If the extension module `_core` is built for a single version of Python, this
// code is part of `_core`. If `_core` uses Python's stable ABI, there is a small library for each
// version, and `_core` loads the library for the running version from its own folder.
#pragma once

#include <Python.h>

#include <cstddef>

#if !defined(Py_LIMITED_API) && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define PLIMSOLL_KNOWS_FRAMES 1
#endif

namespace plimsoll::python {

struct Frame {
  PyCodeObject* code;
  int instruction;  // byte offset in the bytecode of `code`
  bool operator==(const Frame&) const = default;
};

// Writes the innermost frames of the calling thread, at most `capacity`. Returns how many frames
// the thread has. Takes no lock.
using FrameReader = std::size_t (*)(Frame* frames, std::size_t capacity);

}  // namespace plimsoll::python

// The FrameReader for the version of Python that this code is compiled for. The library exports it
// under this name.
extern "C" __attribute__((visibility("default"))) std::size_t plimsoll_read_frames(
    plimsoll::python::Frame* frames, std::size_t capacity);
