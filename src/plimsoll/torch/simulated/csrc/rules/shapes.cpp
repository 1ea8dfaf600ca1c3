// Operations whose Meta kernel PyTorch lacks: the rule also sets the shapes of the results.
#include <ATen/ops/empty_like.h>

#include <cstdint>
#include <vector>

#include "device/tensors.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Returns the shape that empty_like gives, which the CUDA kernels use.
at::Tensor like(const at::Tensor& tensor) { return at::empty_like(meta_like(tensor)); }

void like_first(Call& call) { call.set_shape(0, like(call.tensor(0))); }

void like_second_contiguous(Call& call) {
  const at::Tensor input = call.tensor(1);
  call.set_shape(0, meta_contiguous(input));
}

// Results: the rounded tensor, and which of its elements were in range.
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

// --- connectionist temporal classification (CTC), as aten/src/ATen/native/cuda/LossCTC.cu --------

// Takes three arrays on the device: the starts and lengths of targets, and the lengths of inputs.
void ctc_lengths(Call& call) {
  const std::size_t batch = call.argument(3).toIntVector().size();
  for (int i = 0; i < 3; ++i) call.temporary(batch * sizeof(std::int64_t));
}

// The results are the losses, and the probabilities of all prefixes.
void ctc_loss(Call& call) {
  ctc_lengths(call);
  call.allocate(1);
  call.allocate(0);
}

// The arguments are (grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood,
// log_alpha, ...).
void ctc_loss_backward(Call& call) {
  const at::Tensor prefixes = call.tensor(6);
  like_second_contiguous(call);
  ctc_lengths(call);
  call.temporary(bytes_of(prefixes));
  call.allocate(0);
}

// --- batch normalization over several processes --------------------------------------------------

void note_staging(Call& call, const at::Tensor& input) {
  if (!input.is_contiguous()) call.assume_memory("its kernel takes no memory besides its results");
}

// Returns a shape with one number per channel, in at least single precision.
at::Tensor channels(const at::Tensor& input) {
  const bool is_half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  return meta_empty({input.size(1)}, is_half ? at::kFloat : input.scalar_type());
}

void channel_statistics(Call& call) {
  const at::Tensor input = call.tensor(0);
  note_staging(call, input);
  call.set_shape(0, channels(input));
  call.set_shape(1, channels(input));
}

// Arguments: (grad, input, mean, invstd, weight, of_input, of_weight, of_bias).
void channel_gradients(Call& call) {
  note_staging(call, call.tensor(1));
  const at::Tensor mean = like(call.tensor(2));
  const at::Tensor weight = call.tensor(4);
  const at::Tensor parameter = weight.defined() ? like(weight) : at::Tensor();
  const bool of_input = call.argument(5).toBool();
  call.set_shape(0, of_input ? mean : at::Tensor());
  call.set_shape(1, of_input ? mean : at::Tensor());
  call.set_shape(2, call.argument(6).toBool() ? parameter : at::Tensor());
  call.set_shape(3, call.argument(7).toBool() ? parameter : at::Tensor());
}

void like_second(Call& call) { call.set_shape(0, like(call.tensor(1))); }

// --- least squares -------------------------------------------------------------------------------

// Arguments of _padded_dense_to_jagged_forward: (dense, offsets, total). The result has the rows
// without their padding.
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

// The number of rows is a value that the host reads from `offsets`, after the earlier steps.
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
    {"batch_norm_stats", channel_statistics},
    {"batch_norm_gather_stats_with_counts", channel_statistics},
    {"batch_norm_elemt", like_first},
    {"batch_norm_backward_reduce", channel_gradients},
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
