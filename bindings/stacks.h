// Python call stacks as numbers: each distinct stack is kept once.
//
// A stack that its thread has seen before costs a walk over the thread's own frames and a look-up,
// and neither takes the interpreter's lock: a thread's frames stand still while it is in C++, and
// the code objects of every known stack are kept alive, so equal pointers mean equal code. Only a
// stack at its first sight takes the lock, to be kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "known_frames.h"

namespace plimsoll::python {

using Stack = std::vector<Frame>;  // innermost first

class StackTable {
 public:
  // The number of the calling thread's stack; 0 where no Python runs. With or without the
  // interpreter's lock; the caller must hold no other that somebody who has that lock may want.
  std::uint32_t capture();

  // These need the interpreter's lock.
  [[nodiscard]] std::size_t size() const { return stacks_.size(); }
  [[nodiscard]] const Stack& stack(std::size_t number) const { return stacks_[number]; }

  // The process has one table. It is never destroyed: threads may outlive the interpreter.
  static StackTable& instance();

 private:
  StackTable() { stacks_.emplace_back(); }

  std::uint32_t keep(const Stack& stack, std::uint64_t hash);

  std::deque<Stack> stacks_;  // their places in memory stay
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
};

// For C interfaces: the number of the calling thread's stack.
inline std::uint32_t capture_stack() { return StackTable::instance().capture(); }

}  // namespace plimsoll::python
