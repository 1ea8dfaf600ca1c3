// A call's arguments on the host, for functions that compute there what otherwise only GPUs can.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <utility>

#include "operation/call.h"

namespace plimsoll::simulated {

// The arguments, by their names.
class Named {
 public:
  Named(const Call& call, torch::jit::Stack stack) : call_(call), values_(std::move(stack)) {}

  [[nodiscard]] const c10::IValue& operator[](const char* name) const {
    const auto place = call_.op().schema().argumentIndexWithName(name);
    TORCH_CHECK(place, "no argument ", name);
    return values_.at(static_cast<std::size_t>(*place));
  }
  // Returns the tensor of this name; undefined if there is none.
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

// Takes the arguments from the stack.
inline torch::jit::Stack take(torch::jit::Stack& stack) { return std::exchange(stack, {}); }

// Returns the tensor in single precision, in which kernels accumulate.
inline at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat)
                                                                             : tensor;
}

}  // namespace plimsoll::simulated
