// Operations for which PyTorch has no Meta kernel. So their rules also set the results' shapes.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>

#include <cstdint>
#include <vector>

#include "device/tensors.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Returns the shape that empty_like gives: the CUDA kernels allocate these results by empty_like.
at::Tensor like(const at::Tensor& tensor) { return at::empty_like(meta_like(tensor)); }

void like_first(Call& call) { call.set_shape(0, like(call.tensor(0))); }

void like_first_contiguous(Call& call) { call.set_shape(0, meta_contiguous(call.tensor(0))); }

void like_second_contiguous(Call& call) {
  const at::Tensor input = call.tensor(1);
  call.set_shape(0, meta_contiguous(input));
}

// Simulates fake quantization. The results are the rounded tensor, and a mask of the elements that
// were in range.
void fake_quantize(Call& call) {
  const at::Tensor rounded = like(call.tensor(0));
  call.set_shape(0, rounded);
  call.set_shape(1, at::empty_like(rounded, rounded.options().dtype(at::kBool)));
}

void nonzero_static(Call& call) {  // (self, size, fill_value); has no Meta kernel
  const at::Tensor self = call.tensor(0);
  call.set_shape(0, meta_empty({call.argument(1).toInt(), self.dim()}, at::kLong));
  call.allocate_all();
}

// --- CTC loss: aten/src/ATen/native/cuda/LossCTC.cu ----------------------------------------------

// Takes memory for three arrays on the device: the starts and lengths of targets, and the lengths
// of inputs.
void ctc_lengths(Call& call) {
  const std::size_t batch = call.argument(3).toIntVector().size();
  for (int i = 0; i < 3; ++i) call.temporary(batch * sizeof(std::int64_t));
}

// Simulates _ctc_loss. The results are the losses, and the probabilities of all prefixes.
void ctc_loss(Call& call) {
  ctc_lengths(call);
  call.allocate(1);
  call.allocate(0);
}

// Simulates _ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths,
// neg_log_likelihood, log_alpha, blank, zero_infinity).
void ctc_loss_backward(Call& call) {
  const at::Tensor scores = call.tensor(1);
  const at::Tensor prefixes = call.tensor(6);
  const std::int64_t steps = scores.size(0);
  const std::int64_t batch = scores.size(1);
  like_second_contiguous(call);
  ctc_lengths(call);
  call.temporary(bytes_of(prefixes));
  const bool is_large = 2 * steps + 24 * batch / 10 + 2 * scores.size(2) / 10 > 450;
  if (!is_large) return;
  // For a small problem, one kernel computes the whole gradient. For a large problem, PyTorch
  // computes the gradient of the blank symbol with separate operations. These operations sum over
  // the blanks of each target. Every second position of `prefixes` is a blank.
  const bool removes_infinity = call.argument(8).toBool();
  std::size_t with_infinity = 0;
  if (removes_infinity) {
    with_infinity = call.temporary(bytes_of(scores));
  } else {
    call.allocate(0);
  }
  const std::vector<std::int64_t> blanks{batch, prefixes.size(1), prefixes.size(2) / 2 + 1};
  const std::size_t summed = call.run([blanks, options = prefixes.options()] {
    const at::Tensor both = at::empty(blanks, options);
    return std::vector{at::logsumexp(both, 2, /*keepdim=*/true), both};
  });
  call.release(summed);
  if (!removes_infinity) return;
  const std::size_t zero = call.temporary(scores.itemsize());
  const std::size_t is_infinite = call.temporary(static_cast<std::size_t>(batch));
  call.allocate(0);
  release_backwards(call, {zero, is_infinite, with_infinity});
}

void like_second(Call& call) { call.set_shape(0, like(call.tensor(1))); }

// --- padding, and tensors that are not simulated -------------------------------------------------

// Simulates what _padded_dense_to_jagged_forward(dense, offsets, total) does once the host can read
// `offsets`. The result has the rows without their padding.
void rows_without_padding(Call& call) {
  const at::Tensor dense = call.tensor(0);
  const std::vector<at::Tensor> offsets = call.tensors(1);
  std::vector<std::int64_t> sizes = dense.sizes().vec();
  sizes.erase(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(offsets.size()));
  sizes[0] = call.argument(2).isNone() ? offsets.back()[-1].item<std::int64_t>()
                                       : call.argument(2).toInt();
  call.set_shape(0, meta_empty(sizes, dense.scalar_type()));
  const std::size_t read = call.temporary(storage_bytes(call.shape_of_result(0)));
  call.allocate(0);
  call.release(read);
}

// If the call has no `total`, only the values of `offsets` tell the number of result rows. So
// `then` delays the rule until plimsoll carries out the steps of this call.
void padded_to_jagged(Call& call) { call.then(rows_without_padding); }

void quantized(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "plimsoll cannot simulate the operation aten::", call.info().plain_name,
      ": quantized tensors on a GPU are not modelled");
}

void semi_structured(Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "plimsoll cannot simulate the operation aten::", call.info().plain_name,
      ": semi-structured sparse tensors are not modelled");
}

const RuleTable kShapesRules{
    {"_standard_gamma", like_first_contiguous},
    {"_standard_gamma_grad", like_first},
    {"_dirichlet_grad", like_first},
    {"fake_quantize_per_tensor_affine_cachemask", fake_quantize},
    {"_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", fake_quantize},
    {"fake_quantize_per_channel_affine_cachemask", fake_quantize},
    {"multi_margin_loss_backward", like_second_contiguous},
    {"multilabel_margin_loss_backward", like_second_contiguous},
    {"nonzero_static", nonzero_static},
    {"_ctc_loss", ctc_loss},
    {"_ctc_loss_backward", ctc_loss_backward},
    {"batch_norm_elemt", like_first},
    {"batch_norm_backward_elemt", like_second},
    {"_padded_dense_to_jagged_forward", padded_to_jagged},
    {"quantize_per_tensor", quantized},
    {"quantize_per_tensor_dynamic", quantized},
    {"quantize_per_channel", quantized},
    {"_make_per_tensor_quantized_tensor", quantized},
    {"_make_per_channel_quantized_tensor", quantized},
    {"_cslt_compress", semi_structured},
};

}  // namespace
}  // namespace plimsoll::simulated
