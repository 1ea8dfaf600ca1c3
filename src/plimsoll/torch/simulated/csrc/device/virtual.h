// Large tensors of the host without contents.
//
// Building a model on the host and moving it costs minutes and its whole size, for values that a
// simulation never needs. So large tensors of the host, when simulating, have zeros that take no
// memory until somebody writes them, and operations on them compute shapes alone. They carry the
// dispatch key CustomRNGKeyId, which no tensor of PyTorch's has in any version. (Fake, made for
// this, is PyTorch's own since 2.15.)
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::simulated {

constexpr c10::DispatchKey kVirtualKey = c10::DispatchKey::CustomRNGKeyId;

// Tensors of the host that this thread makes meanwhile have contents, whatever their size: those
// with which the simulation itself computes, and a compiler.
class WithContentsScope {
 public:
  WithContentsScope() { enter(); }
  ~WithContentsScope() { leave(); }
  WithContentsScope(const WithContentsScope&) = delete;
  WithContentsScope& operator=(const WithContentsScope&) = delete;
  static bool is_entered() { return depth != 0; }
  // For callers in Python, which enter and leave in pairs.
  static void enter() { ++depth; }
  static void leave() { --depth; }

 private:
  inline static thread_local int depth = 0;
};

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kVirtualKey);
}

}  // namespace plimsoll::simulated
