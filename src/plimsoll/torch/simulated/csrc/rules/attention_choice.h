// Chooses the kernel that scaled_dot_product_attention runs on the simulated GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace plimsoll::simulated {

struct AttentionCall {
  at::Tensor query, key, value, mask;
  double dropout = 0;
  bool is_causal = false;
  bool enable_gqa = false;
};

// Returns whether the kernel with the number `backend` can run a call. PyTorch's numbers are:
// math 0, flash 1, efficient 2, cuDNN 3.
bool fits_attention(const AttentionCall& call, std::int64_t backend);
// Returns the number of the kernel that PyTorch chooses for a call.
std::int64_t choose_attention(const AttentionCall& call);

// Runs scaled_dot_product_attention on CUDA tensors by calling the operations of the chosen kernel.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout,
                                        bool is_causal, std::optional<double> scale,
                                        bool enable_gqa);

// Returns the number of parts into which the flash kernel splits the keys. The kernel splits the
// keys if it has too few thread blocks to fill the chip.
std::size_t flash_splits(std::size_t blocks, std::size_t processors, std::size_t key_blocks);

}  // namespace plimsoll::simulated
