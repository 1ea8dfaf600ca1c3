// A function of Python's that the library calls, from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll::simulated {

// An exception of the function, such as an interrupt from the terminal, cannot go through kernels.
// So the thread's program raises it, as soon as it runs Python's code again.
class Callback {
 public:
  Callback() = default;
  // Calls an object of Python's that lives on.
  explicit Callback(void* function) : function_(function) {}

  // Whether it returned what is true; no, if it raised. Takes the interpreter's lock.
  bool operator()() const;
  bool operator()(std::uint64_t argument) const;
  bool operator()(std::uint64_t first, std::uint64_t second) const;
  // The bytes that it returned; none, if it raised.
  std::string ask(std::string_view bytes) const;

 private:
  void* function_ = nullptr;
};

}  // namespace plimsoll::simulated
