// Reads a thread's frames in the interpreter's own layout, which is known for some versions of
// Python. The code is compiled for one version at a time: as part of a `_core` for that version or,
// if `_core` uses Python's stable ABI, as a small library that `_core` loads from its own folder.
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
