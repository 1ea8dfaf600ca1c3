#include "stacks.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <bit>

#include "frames.h"
#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

std::uint64_t hash_of(const Stack& stack) {
  std::uint64_t hash = stack.size();
  for (const Frame& frame : stack) {
    const auto code = std::bit_cast<std::uintptr_t>(frame.code);
    hash = (hash ^ code ^ (std::uint64_t{static_cast<std::uint32_t>(frame.instruction)} << 48)) *
           0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

// A stack that a thread has seen before. If several stacks have the same hash, a thread keeps only
// the first that it saw.
struct Known {
  const Stack* stack;
  std::uint32_t number;
};
struct ThreadStacks {
  Stack current;
  std::unordered_map<std::uint64_t, Known> known;
};

}  // namespace

StackTable& StackTable::instance() {
  static auto* const table = new StackTable;
  return *table;
}

std::uint32_t StackTable::capture() {
  thread_local ThreadStacks mine;
  gather_frames(mine.current);
  if (mine.current.empty()) return 0;
  const std::uint64_t hash = hash_of(mine.current);
  const auto found = mine.known.find(hash);
  if (found != mine.known.end() && *found->second.stack == mine.current) {
    return found->second.number;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  const std::uint32_t number = keep(mine.current, hash);
  const Stack* const kept = &stacks_[number];
  PyGILState_Release(state);
  mine.known.try_emplace(hash, Known{kept, number});
  return number;
}

std::uint32_t StackTable::join(std::uint32_t inner, std::uint32_t outer) {
  const PyGILState_STATE state = PyGILState_Ensure();
  Stack joined = stacks_[inner];
  const Stack& behind = stacks_[outer];
  joined.insert(joined.end(), behind.begin(), behind.end());
  const std::uint32_t number = keep(joined, hash_of(joined));
  PyGILState_Release(state);
  return number;
}

std::uint32_t StackTable::keep(const Stack& stack, std::uint64_t hash) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    if (stacks_[entry->second] == stack) return entry->second;
  }
  for (const Frame& frame : stack) Py_INCREF(reinterpret_cast<PyObject*>(frame.code));
  const auto number = static_cast<std::uint32_t>(stacks_.size());
  stacks_.push_back(stack);
  by_hash_.emplace(hash, number);
  return number;
}

void bind_stacks(nb::module_& module) {
  module.def(
      "capture_stack", [] { return StackTable::instance().capture(); },
      "The number of this call stack, the caller's frame first.");
  module.def(
      "join_stacks",
      [](std::uint32_t inner, std::uint32_t outer) {
        const StackTable& table = StackTable::instance();
        if (std::max(inner, outer) >= table.size()) throw nb::index_error("no such stack");
        return join_stacks(inner, outer);
      },
      "inner"_a, "outer"_a,
      "The number of the stack with the frames of both, those of inner first.");
  module.def(
      "stack_frames",
      [](std::size_t number) {
        const StackTable& table = StackTable::instance();
        if (number >= table.size()) throw nb::index_error("no such stack");
        nb::list frames;
        for (const Frame& frame : table.stack(number)) {
          const nb::handle code(reinterpret_cast<PyObject*>(frame.code));
          frames.append(
              nb::make_tuple(code.attr("co_filename"), line_of(frame), code.attr("co_name")));
        }
        return frames;
      },
      "number"_a, nb::sig("def stack_frames(number: int) -> list[tuple[str, int, str]]"),
      "The frames of a stack, innermost first: file, line, function.");
}

}  // namespace plimsoll::python
