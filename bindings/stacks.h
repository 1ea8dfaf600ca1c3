// Python call stacks as numbers: each distinct stack is kept once.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace plimsoll::python {

struct Frame {
  PyCodeObject* code;  // kept alive by the table
  int instruction;     // a byte offset, for PyCode_Addr2Line
};

// All of it needs the interpreter's lock.
class StackTable {
 public:
  // The number of the calling thread's stack, innermost frame first; 0 where no Python runs.
  std::uint32_t capture();
  [[nodiscard]] std::size_t size() const { return stacks_.size(); }
  [[nodiscard]] const std::vector<std::uint32_t>& stack(std::size_t number) const {
    return stacks_[number];
  }
  [[nodiscard]] const Frame& frame(std::size_t number) const { return frames_[number]; }

  // The process has one table. It is never destroyed: threads may outlive the interpreter.
  static StackTable& instance();

 private:
  StackTable() { stacks_.emplace_back(); }

  struct FrameHash {
    std::size_t operator()(const std::pair<PyCodeObject*, int>& key) const {
      return std::hash<const void*>{}(key.first) * 31 + static_cast<std::size_t>(key.second);
    }
  };
  struct StackHash {
    std::size_t operator()(const std::vector<std::uint32_t>& stack) const;
  };

  std::vector<Frame> frames_;
  std::unordered_map<std::pair<PyCodeObject*, int>, std::uint32_t, FrameHash> frame_numbers_;
  std::vector<std::vector<std::uint32_t>> stacks_;
  std::unordered_map<std::vector<std::uint32_t>, std::uint32_t, StackHash> stack_numbers_;
  std::vector<std::uint32_t> current_;
};

}  // namespace plimsoll::python
