// These functions follow aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and attention.cpp of
// PyTorch 2.9 to 2.13. They accept the symbolic sizes that tensors have while a program is
// compiled.
#include "rules/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "chips/chip.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using at::SDPBackend;
using at::Tensor;

// The text of each assumption in this file begins with these words. library.py has the same words
// in MATH_ATTENTION.
constexpr std::string_view kMathAttention = "attention runs the math kernel: ";

const Chip& chip_of(const Tensor& tensor) {
  return chip_of(runtime().device(tensor.device().index()).properties);
}

bool is_half(const Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool needs_grad(const AttentionCall& call) {
  return c10::GradMode::is_enabled() &&
         (call.query.requires_grad() || call.key.requires_grad() || call.value.requires_grad());
}

bool all_have_type(const AttentionCall& call, bool allow_float) {
  const auto type = call.query.scalar_type();
  if (call.key.scalar_type() != type || call.value.scalar_type() != type) return false;
  return type == at::kHalf || (type == at::kBFloat16 && chip_of(call.query).has_bfloat16 != 0) ||
         (allow_float && type == at::kFloat);
}

bool has_usable_shapes(const AttentionCall& call, bool allow_gqa) {
  if (call.query.dim() != 4 || call.key.dim() != 4 || call.value.dim() != 4) return false;
  if (call.query.sym_size(0) != call.key.sym_size(0) ||
      call.query.sym_size(0) != call.value.sym_size(0)) {
    return false;
  }
  if (call.query.sym_size(2) == 0 || call.key.sym_size(2) == 0) return false;
  const auto q = call.query.sym_size(1);
  const auto k = call.key.sym_size(1);
  const auto v = call.value.sym_size(1);
  if (call.enable_gqa) return allow_gqa && k != 0 && v != 0 && q % k == 0 && q % v == 0;
  return q == k && q == v;
}

bool has_dense_last_dimension(const AttentionCall& call, bool ignore_singleton) {
  const auto is_dense = [](const Tensor& tensor) { return tensor.sym_stride(-1) == 1; };
  const bool dense = is_dense(call.query) && is_dense(call.key) && is_dense(call.value);
  const bool mask = !call.mask.defined() || is_dense(call.mask) || call.mask.sym_size(-1) == 1;
  return (dense || (ignore_singleton && call.query.sym_size(-1) == 1)) && mask;
}

bool can_use_flash(const AttentionCall& call) {
  if (!at::globalContext().userEnabledFlashSDP() || call.mask.defined()) return false;
  const Chip& chip = chip_of(call.query);
  if (chip.flash == 0 || !has_usable_shapes(call, true) || !all_have_type(call, false)) {
    return false;
  }
  const auto width = call.query.sym_size(-1);
  if (width > 256 || call.key.sym_size(-1) != width || call.value.sym_size(-1) != width)
    return false;
  if (needs_grad(call) && chip.wide_flash_gradients == 0 &&
      ((width > 192 && width <= 224) || (width > 224 && call.dropout > 0))) {
    return false;
  }
  if (call.is_causal && call.query.sym_size(-2) != call.key.sym_size(-2)) return false;
  return has_dense_last_dimension(call, true);
}

bool can_use_efficient(const AttentionCall& call) {
  if (!at::globalContext().userEnabledMemEfficientSDP()) return false;
  if (!has_usable_shapes(call, false) || !all_have_type(call, true)) return false;
  const Chip& chip = chip_of(call.query);
  const std::int64_t alignment = is_half(call.query) ? chip.aligned_halves : chip.aligned_floats;
  const auto width = call.query.sym_size(-1);
  const auto value_width = call.value.sym_size(-1);
  return call.key.sym_size(-1) == width && width > 0 && width % alignment == 0 && value_width > 0 &&
         value_width % alignment == 0 && has_dense_last_dimension(call, false);
}

bool can_use_cudnn(const AttentionCall& call) {
  if (call.mask.defined() && call.mask.requires_grad()) return false;
  if (!at::globalContext().userEnabledCuDNNSDP()) return false;
  if (at::globalContext().deterministicAlgorithms()) return false;
  const Chip& chip = chip_of(call.query);
  if (chip.cudnn_width == 0 || !has_usable_shapes(call, true) || !all_have_type(call, false)) {
    return false;
  }
  if (!has_dense_last_dimension(call, true)) return false;
  const auto width = call.query.sym_size(-1);
  const auto value_width = call.value.sym_size(-1);
  const bool has_wide_keys = width == chip.cudnn_wide_keys && value_width == 128;
  const std::int64_t most = has_wide_keys ? chip.cudnn_wide_keys : chip.cudnn_width;
  if (width > most || value_width > most || width % 8 != 0 || value_width % 8 != 0) return false;
  return call.key.sym_size(2) != 1 && !(call.query.sym_size(2) == 1 && call.dropout != 0);
}

bool prefers_cudnn(const AttentionCall& call) {
  const std::int64_t since = chip_of(call.query).cudnn_first_since;
  return since != 0 && runtime().torch_version >= since;
}

// Throws if the operands' types do not match, like validate_sdpa_input of
// aten/src/ATen/native/transformers/attention.cpp.
void check_types(const AttentionCall& call) {
  const auto type = call.query.dtype();
  TORCH_CHECK(type == call.key.dtype() && type == call.value.dtype(),
              "Expected query, key, and value to have the same dtype, but got query.dtype: ", type,
              " key.dtype: ", call.key.dtype(), " and value.dtype: ", call.value.dtype(),
              " instead.");
  if (!call.mask.defined()) return;
  const auto mask = call.mask.dtype();
  TORCH_CHECK(mask == at::kBool || mask == at::kFloat || mask == type,
              "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
              "attn_mask.dtype: ",
              mask, " and  query.dtype: ", type, " instead.");
}

// Returns why no fused kernel can run a call, as a text for the report.
std::string why_math(const AttentionCall& call) {
  const at::Context& context = at::globalContext();
  if (!context.userEnabledFlashSDP() && !context.userEnabledMemEfficientSDP() &&
      !context.userEnabledCuDNNSDP()) {
    return "the program switches the fused kernels off";
  }
  if (call.query.dim() != 4) return "fused kernels take tensors of four dimensions";
  if (!all_have_type(call, true)) return "fused kernels take no such type";
  const std::string heads =
      "heads of " + std::to_string(call.query.sym_size(-1).guard_int(__FILE__, __LINE__));
  if (call.enable_gqa && call.query.sym_size(1) != call.key.sym_size(1)) {
    const char* const with = call.mask.defined()             ? "a mask"
                             : !all_have_type(call, false)   ? "float32"
                             : call.query.sym_size(-1) > 256 ? heads.c_str()
                                                             : "these inputs";
    return std::string("no fused kernel takes grouped queries with ") + with;
  }
  if (!has_usable_shapes(call, true)) return "query and key differ in batch or heads";
  if (!has_dense_last_dimension(call, false)) return "the last dimension has gaps in memory";
  const Chip& chip = chip_of(call.query);
  const std::int64_t alignment = is_half(call.query) ? chip.aligned_halves : chip.aligned_floats;
  if (call.query.sym_size(-1) % alignment != 0 || call.value.sym_size(-1) % alignment != 0) {
    return heads + " are no multiple of " + std::to_string(alignment);
  }
  if (!context.userEnabledMemEfficientSDP()) return "the program switches fused kernels off";
  return "no fused kernel takes these inputs";
}

// Notes the assumption that the math kernel runs. The note also says how many bytes of attention
// scores this kernel keeps.
void note_math(const AttentionCall& call) {
  if (call.query.dim() < 2 || call.key.dim() < 2) return;
  const auto rows = (call.query.sym_numel() / call.query.sym_size(-1)).maybe_as_int();
  const auto columns = call.key.sym_size(-2).maybe_as_int();
  if (!rows || !columns) return;  // symbolic sizes, while the program is compiled
  const auto bytes = static_cast<std::uint64_t>(*rows * *columns) * call.query.element_size();
  runtime().assume(runtime().name("aten::scaled_dot_product_attention"),
                   std::string(kMathAttention) + why_math(call), bytes);
}

Tensor to_additive(const Tensor& mask, const Tensor& query) {
  if (!mask.defined() || mask.scalar_type() != at::kBool) return mask;
  const auto options = mask.options().dtype(query.scalar_type());
  const Tensor zero = at::scalar_tensor(0.0, options);
  return at::where(mask, zero,
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(), options));
}

// Returns the mask in a layout that the efficient kernel accepts: each row starts at a multiple of
// 8 elements. Copies the mask if necessary.
Tensor pad_mask(const Tensor& mask, const Tensor& query, const Tensor& key) {
  constexpr std::int64_t kAlignment = 8;
  const auto expand = [&](const Tensor& bias) {
    return bias.expand_symint(
        {query.sym_size(0), query.sym_size(1), query.sym_size(2), key.sym_size(2)});
  };
  const auto is_aligned = [](const Tensor& bias) {
    return bias.sym_storage_offset() % kAlignment == 0 && bias.sym_stride(-2) % kAlignment == 0 &&
           bias.sym_stride(-1) == 1;
  };
  const Tensor two = mask.dim() < 2 ? mask.unsqueeze(0) : mask;
  if (is_aligned(two)) return expand(two);
  const auto length = two.sym_size(-1);
  const c10::SymInt padding[] = {0, kAlignment - length % kAlignment};
  const Tensor padded = length % kAlignment == 0
                            ? two.contiguous()
                            : at::pad_symint(two, padding).slice_symint(-1, 0, length);
  return expand(padded);
}

Tensor pad_width(const Tensor& tensor) {
  const auto width = tensor.sym_size(-1);
  if (width % 8 == 0) return tensor;
  const c10::SymInt padding[] = {0, 8 - width % 8};
  return at::pad_symint(tensor, padding);
}

}  // namespace

bool fits_attention(const AttentionCall& call, std::int64_t backend) {
  switch (static_cast<SDPBackend>(backend)) {
    case SDPBackend::cudnn_attention: return can_use_cudnn(call);
    case SDPBackend::flash_attention: return can_use_flash(call);
    case SDPBackend::efficient_attention: return can_use_efficient(call);
    default:
      return static_cast<SDPBackend>(backend) == SDPBackend::math &&
             at::globalContext().userEnabledMathSDP();
  }
}

std::int64_t choose_attention(const AttentionCall& call) {
  std::vector<SDPBackend> order;
  for (const SDPBackend backend : at::globalContext().sDPPriorityOrder()) order.push_back(backend);
  const bool is_default = order.front() == SDPBackend::flash_attention;
  if (is_default && prefers_cudnn(call)) {
    order = {SDPBackend::cudnn_attention, SDPBackend::flash_attention,
             SDPBackend::efficient_attention, SDPBackend::math};
  }
  for (const SDPBackend backend : order) {
    const auto number = static_cast<std::int64_t>(backend);
    if (!fits_attention(call, number)) continue;
    if (backend == SDPBackend::math) note_math(call);
    return number;
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const std::optional<Tensor>& given_mask, double dropout,
                                    bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const Tensor mask = given_mask.value_or(Tensor());
  const AttentionCall call{query, key, value, mask, dropout, is_causal, enable_gqa};
  check_types(call);
  TORCH_CHECK(!(mask.defined() && is_causal),
              "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
              "is_causal=True");
  const auto optional_mask = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
  };
  switch (static_cast<SDPBackend>(choose_attention(call))) {
    case SDPBackend::cudnn_attention:
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
          query, key, value, optional_mask(to_additive(mask, query)), needs_grad(call), dropout,
          is_causal, false, scale));
    case SDPBackend::flash_attention: {
      const auto width = query.sym_size(-1).guard_int(__FILE__, __LINE__);
      const double used = scale.value_or(1.0 / std::sqrt(static_cast<double>(width)));
      const Tensor out = std::get<0>(at::_scaled_dot_product_flash_attention(
          pad_width(query), pad_width(key), pad_width(value), dropout, is_causal, false, used));
      return out.sym_size(-1) == width ? out : out.slice(-1, 0, width);
    }
    case SDPBackend::efficient_attention: {
      const Tensor additive = to_additive(mask, query);
      return std::get<0>(at::_scaled_dot_product_efficient_attention(
          query, key, value,
          additive.defined() ? std::optional<Tensor>(pad_mask(additive, query, key)) : std::nullopt,
          needs_grad(call), dropout, is_causal, scale));
    }
    default:
      return std::get<0>(at::_scaled_dot_product_attention_math(
          query, key, value, optional_mask(to_additive(mask, query)), dropout, is_causal,
          std::nullopt, scale, enable_gqa));
  }
}

}  // namespace plimsoll::simulated
