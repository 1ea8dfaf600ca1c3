// Chooses the kernel of scaled_dot_product_attention on the simulated GPU.
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

// Check and choose a kernel by PyTorch's numbers: math 0, flash 1, efficient 2, cuDNN 3.
bool fits_attention(const AttentionCall& call, std::int64_t backend);
std::int64_t choose_attention(const AttentionCall& call);

// The operation of that name on CUDA tensors, composed of the chosen kernel's operations.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout,
                                        bool is_causal, std::optional<double> scale,
                                        bool enable_gqa);

// Returns the number of parts into which the flash kernel splits the keys when few query rows would
// not fill the chip.
std::size_t flash_splits(std::size_t blocks, std::size_t processors, std::size_t key_blocks);

}  // namespace plimsoll::simulated
