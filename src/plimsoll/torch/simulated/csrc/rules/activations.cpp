// Rules for softmax and for pointwise operations that take memory besides their results. The memory
// holds a copy or a product of operands, a mask, or a number that the kernel reads on the device.
#include <ATen/ops/mul.h>

#include "device/tensors.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

void softmax(Call& call) {
  call.allocate_all();
  copy_unless_contiguous(call, call.tensor(0));
}

void log_softmax_backward(Call& call) {
  call.allocate_all();
  for (const std::size_t argument : {0, 1}) copy_unless_contiguous(call, call.tensor(argument));
}

// Returns the product of two operands as a tensor without memory, in TensorIterator's layout.
at::Tensor product_of(const at::Tensor& first, const at::Tensor& second) {
  return at::mul(meta_like(first), meta_like(second));
}

// The kernel multiplies the gradient by the output, in the layout that TensorIterator gives the
// product, and then needs product and output to be contiguous
// (aten/src/ATen/native/cuda/SoftMax.cu).
void softmax_backward(Call& call) {
  call.allocate_all();
  const at::Tensor grad = call.tensor(0);
  const at::Tensor output = call.tensor(1);
  call.temporary(bytes_of(grad));
  copy_unless_contiguous(call, product_of(grad, output));
  copy_unless_contiguous(call, output);
}

// log_sigmoid: the second result is empty on a GPU; only the CPU's kernel fills it.
void log_sigmoid(Call& call) {
  call.infer();
  call.set_shape(1, meta_empty({0}, call.tensor(0).scalar_type()));
}

// Result 0 is the output. Result 1 is the mask, which the kernel allocates first.
void dropout(Call& call) {
  const bool trains = call.argument(2).isNone() || call.argument(2).toBool();
  if (trains && call.argument(1).toDouble() != 1) call.allocate(1);
}

// power(number, tensor): the kernel copies the number to the device.
void power_of_number(Call& call) {
  call.allocate_all();
  const c10::Scalar base = call.argument(0).toScalar();
  if (!base.isComplex() && base.toDouble() == 1) return;
  call.temporary(base.isComplex() ? 16 : base.isBoolean() ? 1 : 8);
}

// abs and angle: the kernel computes complex results of complex numbers, and then copies their real
// parts to the output.
void to_real(Call& call) {
  call.allocate_all();
  const at::Tensor self = call.tensor(0);
  if (self.is_complex()) call.temporary(bytes_of(self));
}

const RuleTable kActivationRules{
    {"native_dropout", dropout},
    {"_softmax", softmax},
    {"_log_softmax", softmax},
    {"_softmax_backward_data", softmax_backward},
    {"_log_softmax_backward_data", log_softmax_backward},
    {"log_sigmoid_forward", log_sigmoid, kLikeIterator},
    {"hardtanh*", kUnknown, kLikeIterator},
    {"hardswish*", kUnknown, kLikeIterator},
    {"floor_divide*", kUnknown, kLikeIterator},
    {"aten::pow.Scalar", power_of_number},
    {"aten::abs.out", to_real},
    {"aten::angle", to_real},
    {"aten::angle.out", to_real},
};

}  // namespace
}  // namespace plimsoll::simulated
