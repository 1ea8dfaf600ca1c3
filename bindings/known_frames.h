// Reads a thread's frames in the interpreter's own layout, in the versions of Python whose layout
// is known. One version is compiled in: into a `_core` that is built for it, or, if `_core` uses
// Python's stable ABI, into a small library beside it, which `_core` loads.
#pragma once

#include <Python.h>

#include <cstddef>

#if !defined(Py_LIMITED_API) && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define PLIMSOLL_KNOWS_FRAMES 1
#endif

namespace plimsoll::python {

struct Frame {
  PyCodeObject* code;
  int instruction;  // a byte offset in its bytecode
  bool operator==(const Frame&) const = default;
};

// Writes the calling thread's innermost frames, up to `capacity`, and returns how many it has.
// Takes no lock.
using FrameReader = std::size_t (*)(Frame* frames, std::size_t capacity);

}  // namespace plimsoll::python

// The FrameReader of the version that is compiled in; the library exports it under this name.
extern "C" __attribute__((visibility("default"))) std::size_t plimsoll_read_frames(
    plimsoll::python::Frame* frames, std::size_t capacity);
