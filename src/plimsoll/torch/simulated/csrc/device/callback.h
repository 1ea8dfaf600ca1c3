// A Python function that the library calls, from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll::simulated {

// Calls a Python function. An exception of the function, such as an interrupt from the terminal,
// cannot pass through kernels, so the thread's program raises it as soon as it runs Python code
// again.
class Callback {
 public:
  Callback() = default;
  // Takes a Python object that is never released.
  explicit Callback(void* function) : function_(function) {}

  // Returns whether the function returned a true value; false if it raised. Takes the interpreter's
  // lock.
  bool operator()() const;
  bool operator()(std::uint64_t argument) const;
  bool operator()(std::uint64_t first, std::uint64_t second) const;
  // Returns the bytes that the function returned; none if it raised.
  std::string ask(std::string_view bytes) const;

 private:
  void* function_ = nullptr;
};

}  // namespace plimsoll::simulated
