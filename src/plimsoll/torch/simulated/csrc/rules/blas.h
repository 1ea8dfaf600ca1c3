// cuBLAS's workspaces for matrix products. Before version 2.15, PyTorch keeps one workspace for
// each pair of library handle and stream. From 2.15 on, PyTorch frees a product's workspace as soon
// as the product is queued, unless TORCH_CUBLAS_WORKSPACE_CACHE=1 is set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operation/call.h"

namespace plimsoll::simulated {

void take_blas_workspace(Call& call);
// Takes the workspace of cublasLt, which computes products with an epilogue.
void take_lt_workspace(Call& call);
// Returns the workspace's size on the current device: cublasLt's if `lt`, otherwise cuBLAS's.
std::size_t current_blas_workspace_bytes(bool lt);
// Sets the workspace's size on all devices. A negative size restores the default.
void set_blas_workspace_bytes(bool lt, std::int64_t bytes);

}  // namespace plimsoll::simulated
