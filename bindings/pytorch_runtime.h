// Exchanges C++ objects with PyTorch: exceptions and std::function.
//
// PyTorch for Linux uses GCC's C++ library. plimsoll may be built with another C++ library, whose
// exceptions and functions are incompatible. This file therefore makes and calls PyTorch's objects
// in GCC's layout, which has been the same since version 3.4.
#pragma once

#include <utility>

namespace plimsoll::python {

// Throws GCC's std::runtime_error. The exception must not pass through a frame with cleanup
// code: that code would use the runtime of the C++ library that plimsoll is built with.
[[noreturn]] void throw_to_pytorch(const char* message);

// Has the layout of GCC's std::function<bool(Argument)>. PyTorch passes a std::function by value.
// In the ABI of Linux, the called function then gets a reference, and PyTorch destroys the object.
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
