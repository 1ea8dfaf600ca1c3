// Numbers Python call stacks, and keeps each distinct stack once.
//
// If a thread has seen a stack before, no interpreter lock is needed: the thread walks its own
// frames and looks the stack up. That is safe because a thread's frames do not change while it is
// in C++. The table keeps the code objects of all stacks alive, so equal pointers mean equal code.
// If the stack is new to the thread, the thread takes the interpreter's lock to store the stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "known_frames.h"

namespace plimsoll::python {

using Stack = std::vector<Frame>;  // the innermost frame comes first

class StackTable {
 public:
  // Returns the number of the calling thread's stack; 0 if the thread runs no Python. May take the
  // interpreter's lock; the caller may hold that lock already. To avoid deadlocks, the caller must
  // hold no other lock that a thread with the interpreter's lock may wait for.
  std::uint32_t capture();

  // Returns the number of the stack that has the frames of `inner`, then those of `outer`. Takes
  // the interpreter's lock, as `capture` does for a new stack.
  std::uint32_t join(std::uint32_t inner, std::uint32_t outer);

  // The caller of `size` or `stack` must hold the interpreter's lock.
  [[nodiscard]] std::size_t size() const { return stacks_.size(); }
  [[nodiscard]] const Stack& stack(std::size_t number) const { return stacks_[number]; }

  // Returns the process's one table. It is never destroyed, because threads may outlive the
  // interpreter.
  static StackTable& instance();

 private:
  StackTable() { stacks_.emplace_back(); }

  std::uint32_t keep(const Stack& stack, std::uint64_t hash);

  std::deque<Stack> stacks_;  // a deque's elements keep their addresses
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
};

// The functions of the table, for C interfaces.
inline std::uint32_t capture_stack() { return StackTable::instance().capture(); }
inline std::uint32_t join_stacks(std::uint32_t inner, std::uint32_t outer) {
  return StackTable::instance().join(inner, outer);
}

}  // namespace plimsoll::python
