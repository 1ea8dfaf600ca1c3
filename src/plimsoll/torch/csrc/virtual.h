// Large tensors of the host without contents.
//
// Building a model on the host and moving it costs minutes and its whole size, for values that a
// simulation never needs. So large tensors of the host, when simulating, have zeros that take no
// memory until somebody writes them, and operations on them compute shapes alone. They carry the
// dispatch key Fake, which PyTorch reserves for this and does not use itself.
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::simulated {

void register_virtual_tensors();

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::Fake);
}

}  // namespace plimsoll::simulated
