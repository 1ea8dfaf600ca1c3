// Chooses between PyTorch's kernels: for attention, and for the CTC loss.
#include <optional>

#include "device/runtime.h"
#include "execute/kernels.h"
#include "rules/attention_choice.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

std::int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& mask, double dropout, bool is_causal,
                              std::optional<double>, bool enable_gqa) {
  return choose_attention(
      {query, key, value, mask.value_or(Tensor()), dropout, is_causal, enable_gqa});
}

// Returns false, because plimsoll always simulates PyTorch's own kernel for the CTC loss. Notes an
// assumption if PyTorch may use cuDNN's kernel, which needs 32-bit targets on the host.
template <typename Lengths>
bool use_cudnn_ctc_loss(const Tensor& log_probs, const Tensor& targets, Lengths, Lengths,
                        std::int64_t blank) {
  if (targets.is_cpu() && targets.dim() == 1 && targets.scalar_type() == at::kInt && blank == 0 &&
      log_probs.scalar_type() == at::kFloat) {
    runtime().assume(runtime().name("aten::_use_cudnn_ctc_loss"),
                     "plimsoll simulates PyTorch's kernel, but a GPU may run cuDNN's");
  }
  return false;
}

template <typename Lengths>
bool use_miopen_ctc_loss(const Tensor&, const Tensor&, Lengths, Lengths, std::int64_t) {
  return false;
}

// plimsoll::can_use_attention: implements torch.backends.cuda.can_use_flash_attention and similar
// functions.
bool can_use_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::optional<Tensor>& mask, double dropout, bool is_causal,
                       bool enable_gqa, std::int64_t backend) {
  return fits_attention(
      {query, key, value, mask.value_or(Tensor()), dropout, is_causal, enable_gqa}, backend);
}

}  // namespace

void add_choices(WrittenOut& kernels) {
  kernels.add("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  kernels.add("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
  static auto* const autograd = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__);
  autograd->impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
  kernels.add("_use_cudnn_ctc_loss", TORCH_FN(use_cudnn_ctc_loss<at::IntArrayRef>));
  kernels.add("_use_cudnn_ctc_loss.Tensor", TORCH_FN(use_cudnn_ctc_loss<const Tensor&>));
  // PyTorch has this operation since version 2.13.
  if (c10::Dispatcher::singleton().findSchema({"aten::_use_miopen_ctc_loss", ""})) {
    kernels.add("_use_miopen_ctc_loss", TORCH_FN(use_miopen_ctc_loss<at::IntArrayRef>));
    kernels.add("_use_miopen_ctc_loss.Tensor", TORCH_FN(use_miopen_ctc_loss<const Tensor&>));
  }
  define(
      "can_use_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, "
      "bool is_causal, bool enable_gqa, int backend) -> bool",
      TORCH_FN(can_use_attention));
}

}  // namespace plimsoll::simulated
