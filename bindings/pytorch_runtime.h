// What passes between this library and PyTorch as C++ knows it: exceptions, and std::function.
//
// PyTorch for Linux uses GCC's C++ library. This one may have been built with another, which knows
// exceptions and functions of its own only, so that those of PyTorch are made and called here as
// GCC's library lays them out; that has been the same since its version 3.4.
#pragma once

#include <utility>

namespace plimsoll::python {

// Throws GCC's std::runtime_error. It must pass no frame that has anything to clean up, for such a
// frame would be asked in the words of another C++ library.
[[noreturn]] void throw_to_pytorch(const char* message);

// A std::function<bool(Argument)> of GCC's library, which its caller keeps and destroys.
template <typename Argument>
struct PyTorchFunction {
  enum Operation { kTypeInfo, kAddress, kCopy, kDestroy };
  struct alignas(void*) Functor {
    unsigned char bytes[2 * sizeof(void*)];
  };

  Functor functor{};
  bool (*manage)(Functor&, const Functor&, Operation) = nullptr;
  bool (*invoke)(const Functor&, Argument&&) = nullptr;

  PyTorchFunction() = default;
  PyTorchFunction(const PyTorchFunction& other) : invoke(other.invoke) {
    if (other.manage != nullptr) other.manage(functor, other.functor, kCopy);
    manage = other.manage;
  }
  PyTorchFunction& operator=(const PyTorchFunction&) = delete;
  ~PyTorchFunction() {
    if (manage != nullptr) manage(functor, functor, kDestroy);
  }

  bool operator()(Argument argument) const { return invoke(functor, std::move(argument)); }
};

}  // namespace plimsoll::python
