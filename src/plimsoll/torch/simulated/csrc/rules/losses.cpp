// Losses, and the memory in which they sum their elements.
#include <ATen/ExpandUtils.h>

#include "rules/reduction.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Returns the shape of a zero-dimensional result. Its memory has room for `count` elements.
at::Tensor number_in(std::size_t count, at::ScalarType type) {
  return meta_empty({static_cast<std::int64_t>(count)}, type).as_strided({}, {});
}

// Takes and frees the memory for summing the losses of `count` elements.
void total(Call& call, std::size_t count, at::ScalarType type) {
  reduce_to_sum(call, meta_empty({}, type), meta_empty({static_cast<std::int64_t>(count)}, type),
                std::nullopt);
}

std::size_t broadcast_elements(const at::Tensor& first, const at::Tensor& second) {
  return static_cast<std::size_t>(
      c10::multiply_integers(at::infer_size(first.sizes(), second.sizes())));
}

bool is_reduced(const Call& call, std::size_t argument) {
  return call.argument(argument).toInt() != 0;
}

// Simulates a loss that is computed element by element. The kernel allocates the result with room
// for every element's loss, and then shrinks it to one number.
void elementwise_loss(Call& call) {
  if (!is_reduced(call, 2)) return;
  const at::Tensor input = call.tensor(0);
  const std::size_t count = broadcast_elements(input, call.tensor(1));
  call.set_shape(0, number_in(count, input.scalar_type()));
  call.allocate(0);
  const std::size_t losses = call.temporary(count * input.itemsize());
  total(call, count, input.scalar_type());
  call.release(losses);
}

void huber_loss(Call& call) {
  if (!is_reduced(call, 2)) return;
  const at::Tensor input = call.tensor(0);
  const std::size_t count = broadcast_elements(input, call.tensor(1));
  const std::size_t losses = call.temporary(count * input.itemsize());
  call.allocate(0);
  total(call, count, input.scalar_type());
  call.release(losses);
}

void binary_cross_entropy(Call& call) {
  if (!is_reduced(call, 3)) return;
  const at::Tensor input = call.tensor(0);
  call.set_shape(0, number_in(elements(input), input.scalar_type()));
  call.allocate(0);
  const std::size_t number = call.temporary(input.itemsize());
  total(call, elements(input), input.scalar_type());
  call.release(number);
}

// Simulates nll_loss2d. If the losses are not reduced, the kernel allocates the total weight before
// the output.
void nll_loss2d(Call& call) {
  if (!is_reduced(call, 3)) call.allocate(1);
}

// Simulates nll_loss, whose kernel copies tensors that are not contiguous. The backward pass copies
// the input too, although it does not read the input's values.
void nll_loss(Call& call) {
  call.allocate_all();
  for (const std::size_t argument : {0, 1}) copy_unless_contiguous(call, call.tensor(argument));
}

void nll_loss_backward(Call& call) {
  call.allocate_all();
  for (const std::size_t argument : {2, 1, 0}) copy_unless_contiguous(call, call.tensor(argument));
}

const RuleTable kLossRules{
    {"mse_loss", elementwise_loss},
    {"smooth_l1_loss", elementwise_loss},
    {"huber_loss", huber_loss, kLikeIterator},
    {"binary_cross_entropy", binary_cross_entropy, kLikeIterator},
    {"nll_loss2d_forward", nll_loss2d},
    {"nll_loss_backward", nll_loss_backward},
    {"nll_loss_forward", nll_loss},
};

}  // namespace
}  // namespace plimsoll::simulated
