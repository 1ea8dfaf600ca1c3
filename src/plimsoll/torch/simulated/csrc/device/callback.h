// Calls Python functions from any thread of the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll::simulated {

// A Python function. If it raises, for example because of Ctrl-C, the Python exception cannot pass
// through the C++ code that called the function. The thread raises the exception later instead,
// when it next runs Python code.
class Callback {
 public:
  Callback() = default;
  // Stores a Python function, which is never released.
  explicit Callback(void* function) : function_(function) {}

  // Calls the function. Returns whether its result is true in Python; false if it raised. Takes the
  // interpreter's lock.
  bool operator()() const;
  bool operator()(std::uint64_t argument) const;
  bool operator()(std::uint64_t first, std::uint64_t second) const;
  // Calls the function with bytes. Returns the bytes that the function returns, or an empty string
  // if the function raised.
  std::string ask(std::string_view bytes) const;

 private:
  void* function_ = nullptr;
};

}  // namespace plimsoll::simulated
