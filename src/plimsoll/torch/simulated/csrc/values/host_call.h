// Gives access to a call's arguments, for functions that compute GPU-only operations on the host.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <utility>

#include "operation/call.h"

namespace plimsoll::simulated {

// A call's arguments, by the names in the operation's schema.
class Named {
 public:
  Named(const Call& call, torch::jit::Stack stack) : call_(call), values_(std::move(stack)) {}

  [[nodiscard]] const c10::IValue& operator[](const char* name) const {
    const auto place = call_.op().schema().argumentIndexWithName(name);
    TORCH_CHECK(place, "no argument ", name);
    return values_.at(static_cast<std::size_t>(*place));
  }
  // Returns the tensor argument of this name; undefined if there is none.
  [[nodiscard]] at::Tensor tensor(const char* name) const {
    const auto place = call_.op().schema().argumentIndexWithName(name);
    if (!place) return {};
    const c10::IValue& value = values_.at(static_cast<std::size_t>(*place));
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }

 private:
  const Call& call_;
  torch::jit::Stack values_;
};

// Returns all arguments and empties the stack.
inline torch::jit::Stack take(torch::jit::Stack& stack) { return std::exchange(stack, {}); }

// Returns a tensor of half precision as single precision, in which kernels accumulate; other
// tensors are returned as they are.
inline at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat)
                                                                             : tensor;
}

}  // namespace plimsoll::simulated
