// Which kernel scaled_dot_product_attention takes on the simulated GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace plimsoll::simulated {

struct AttentionCall {
  at::Tensor query, key, value, mask;
  double dropout = 0;
  bool is_causal = false;
  bool enable_gqa = false;
};

// PyTorch's number of the kernel: math 0, flash 1, efficient 2, cuDNN 3.
std::int64_t choose_attention(const AttentionCall& call);

// The operation of that name on CUDA tensors, made of the chosen kernel's.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout,
                                        bool is_causal, std::optional<double> scale,
                                        bool enable_gqa);

}  // namespace plimsoll::simulated
