// cuBLAS's workspaces for matrix products. PyTorch keeps one for each library handle and stream.
// From 2.15 on, it frees a product's workspace as soon as the product is queued.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operation/call.h"

namespace plimsoll::simulated {

void take_blas_workspace(Call& call);
// Takes the workspace of cublasLt, which computes products with an epilogue.
void take_lt_workspace(Call& call);
// Return and set the workspace's size on the current device: cublasLt's if `lt`, otherwise
// cuBLAS's. Setting a negative size restores the default.
std::size_t current_blas_workspace_bytes(bool lt);
void set_blas_workspace_bytes(bool lt, std::int64_t bytes);

}  // namespace plimsoll::simulated
