// cuBLAS's workspaces for products: the library handle's, which PyTorch keeps for each handle and
// stream, or, from 2.15 on, one that is freed when the product is queued.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operation/call.h"

namespace plimsoll::simulated {

void take_blas_workspace(Call& call);
// Takes cublasLt's workspace, for a product with an epilogue.
void take_lt_workspace(Call& call);
// Return the size of a workspace, cublasLt's or cuBLAS's on the current device, and set it; a
// negative size removes the setting.
std::size_t current_blas_workspace_bytes(bool lt);
void set_blas_workspace_bytes(bool lt, std::int64_t bytes);

}  // namespace plimsoll::simulated
