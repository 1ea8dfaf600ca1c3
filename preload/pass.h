// The wall (wall.h) asks a supervisor about every call that changes files, except those that carry
// the pass. The pass is a secret number. It stands in the sixth argument, which the
// kernel ignores in these calls.
#pragma once

#include <type_traits>

namespace plimsoll::scratch {

// Sets the pass that `kernel::pass` puts into its system calls. Without a wall the pass stays 0.
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

// Makes a system call that carries the pass. Like syscall(2), it returns -1 and sets errno on
// failure.
template <typename... Values>
long pass(long call, Values... values) {
  return make_with_pass(call, {word(values)...});
}

}  // namespace kernel
}  // namespace plimsoll::scratch
