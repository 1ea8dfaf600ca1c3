#include "stacks.h"

#include <nanobind/nanobind.h>

#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {

std::size_t StackTable::StackHash::operator()(const std::vector<std::uint32_t>& stack) const {
  std::size_t hash = stack.size();
  for (const std::uint32_t frame : stack) hash = (hash ^ frame) * 0x9E3779B97F4A7C15U;
  return hash;
}

StackTable& StackTable::instance() {
  static auto* const table = new StackTable;
  return *table;
}

std::uint32_t StackTable::capture() {
  current_.clear();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    const int instruction = PyFrame_GetLasti(frame);
    const auto [place, is_new] =
        frame_numbers_.try_emplace({code, instruction}, static_cast<std::uint32_t>(frames_.size()));
    if (is_new) {
      frames_.push_back({code, instruction});
    } else {
      Py_DECREF(reinterpret_cast<PyObject*>(code));
    }
    current_.push_back(place->second);
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  if (current_.empty()) return 0;
  const auto [place, is_new] =
      stack_numbers_.try_emplace(current_, static_cast<std::uint32_t>(stacks_.size()));
  if (is_new) stacks_.push_back(current_);
  return place->second;
}

void bind_stacks(nb::module_& module) {
  module.def(
      "capture_stack", [] { return StackTable::instance().capture(); },
      "The number of this call stack, the caller's frame first.");
  module.def(
      "stack_frames",
      [](std::size_t number) {
        const StackTable& table = StackTable::instance();
        if (number >= table.size()) throw nb::index_error("no such stack");
        nb::list frames;
        for (const std::uint32_t place : table.stack(number)) {
          const Frame& frame = table.frame(place);
          frames.append(nb::make_tuple(nb::borrow(frame.code->co_filename),
                                       PyCode_Addr2Line(frame.code, frame.instruction),
                                       nb::borrow(frame.code->co_name)));
        }
        return frames;
      },
      "number"_a, nb::sig("def stack_frames(number: int) -> list[tuple[str, int, str]]"),
      "The frames of a stack, innermost first: file, line, function.");
}

}  // namespace plimsoll::python
