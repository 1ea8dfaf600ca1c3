#include "known_frames.h"

#ifdef PLIMSOLL_KNOWS_FRAMES

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

namespace plimsoll::python {
namespace {

const _PyInterpreterFrame* innermost(const PyThreadState& thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread.current_frame;
#else
  return thread.cframe->current_frame;
#endif
}

bool is_python(const _PyInterpreterFrame& frame) {
#if PY_VERSION_HEX >= 0x030C0000
  return frame.owner != FRAME_OWNED_BY_CSTACK;
#else
  return frame.f_code != nullptr;
#endif
}

Frame frame_of(const _PyInterpreterFrame& frame) {
#if PY_VERSION_HEX >= 0x030D0000
  auto* const code = reinterpret_cast<PyCodeObject*>(frame.f_executable);
  const _Py_CODEUNIT* const instruction = frame.instr_ptr;
#else
  PyCodeObject* const code = frame.f_code;
  const _Py_CODEUNIT* const instruction = frame.prev_instr;
#endif
  const auto offset = reinterpret_cast<const char*>(instruction) - code->co_code_adaptive;
  return {code, static_cast<int>(offset)};
}

}  // namespace
}  // namespace plimsoll::python

std::size_t plimsoll_read_frames(plimsoll::python::Frame* frames, std::size_t capacity) {
  using namespace plimsoll::python;
  const PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return 0;
  std::size_t count = 0;
  for (const _PyInterpreterFrame* frame = innermost(*thread); frame != nullptr;
       frame = frame->previous) {
    if (!is_python(*frame)) continue;
    if (count < capacity) frames[count] = frame_of(*frame);
    ++count;
  }
  return count;
}

#endif
