// Large host tensors without contents.
//
// Programs often build a model on the host and then move it to a GPU. This takes minutes, and host
// memory of the model's whole size, for values that a simulation never needs. In a simulation,
// large host tensors therefore contain zeros, which take no memory until the program writes to
// them. Operations on these tensors compute only shapes. Such a tensor carries the dispatch key
// CustomRNGKeyId, which no version of PyTorch gives to a tensor. (The key Fake is meant for this
// purpose, but PyTorch itself has used that key since 2.15.)
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::simulated {

constexpr c10::DispatchKey kVirtualKey = c10::DispatchKey::CustomRNGKeyId;

// While this object exists, new host tensors of this thread have contents, whatever their size. The
// simulation's own tensors and those of PyTorch's compiler need contents.
class WithContentsScope {
 public:
  WithContentsScope() { enter(); }
  ~WithContentsScope() { leave(); }
  WithContentsScope(const WithContentsScope&) = delete;
  WithContentsScope& operator=(const WithContentsScope&) = delete;
  static bool is_entered() { return depth != 0; }
  // Python cannot hold an object of this class. So it calls these functions, always in pairs.
  static void enter() { ++depth; }
  static void leave() { --depth; }

 private:
  inline static thread_local int depth = 0;
};

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kVirtualKey);
}

}  // namespace plimsoll::simulated
