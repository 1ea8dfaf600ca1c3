#include <Python.h>

#if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define PLIMSOLL_KNOWS_FRAMES 1
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include "frames.h"

namespace plimsoll::python {

#ifdef PLIMSOLL_KNOWS_FRAMES

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

void gather_frames(Stack& stack) {
  stack.clear();
  const PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return;
  for (const _PyInterpreterFrame* frame = innermost(*thread); frame != nullptr;
       frame = frame->previous) {
    if (is_python(*frame)) stack.push_back(frame_of(*frame));
  }
}

#else

void gather_frames(Stack& stack) {
  stack.clear();
  if (PyGILState_GetThisThreadState() == nullptr) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    stack.push_back({code, PyFrame_GetLasti(frame)});
    Py_DECREF(reinterpret_cast<PyObject*>(code));  // the frame has it
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  PyGILState_Release(state);
}

#endif

}  // namespace plimsoll::python
