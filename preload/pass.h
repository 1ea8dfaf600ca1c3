// The wall (wall.h) asks a supervisor about every call that changes files, except those that carry
// the pass. The pass is a secret number in the sixth argument of a call that has at most five.
#pragma once

#include <type_traits>

namespace plimsoll::scratch {

// Every call carries this pass from now on. Without a wall it stays 0.
void set_pass(unsigned long pass);

namespace kernel {

long make_with_pass(long call, const long (&arguments)[5]);

template <typename Value>
long word(Value value) {
  if constexpr (std::is_pointer_v<Value>) {
    return reinterpret_cast<long>(value);
  } else {
    return static_cast<long>(value);
  }
}

// A system call that carries the pass; like syscall(2), it returns -1 and errno where it fails.
template <typename... Values>
long pass(long call, Values... values) {
  return make_with_pass(call, {word(values)...});
}

}  // namespace kernel
}  // namespace plimsoll::scratch
