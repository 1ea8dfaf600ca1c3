// Calls Python functions from any thread of the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll::simulated {

// A Python function. If it raises, for example because of Ctrl-C, the exception cannot pass through
// kernels. The calling thread then raises it as soon as it runs Python code again.
class Callback {
 public:
  Callback() = default;
  // Keeps a Python object for good: it is never released.
  explicit Callback(void* function) : function_(function) {}

  // Calls the function. Returns whether its result is true in Python; false if it raised. Takes the
  // interpreter's lock.
  bool operator()() const;
  bool operator()(std::uint64_t argument) const;
  bool operator()(std::uint64_t first, std::uint64_t second) const;
  // Calls the function with bytes, and returns the bytes it returned; empty if it raised.
  std::string ask(std::string_view bytes) const;

 private:
  void* function_ = nullptr;
};

}  // namespace plimsoll::simulated
