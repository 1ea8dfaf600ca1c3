// A thread's frames as the interpreter itself keeps them, in the versions of Python whose frames
// are known. One version is compiled in: into `_core` that is built for it, or, where `_core` is
// built by Python's stable ABI, into a small library beside it, which `_core` loads.
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

// How many frames the calling thread has; the innermost ones, up to `capacity`, are written. Takes
// no lock.
using FrameReader = std::size_t (*)(Frame* frames, std::size_t capacity);

}  // namespace plimsoll::python

// The FrameReader of the version that is compiled in; a library has it by this name.
extern "C" __attribute__((visibility("default"))) std::size_t plimsoll_read_frames(
    plimsoll::python::Frame* frames, std::size_t capacity);
