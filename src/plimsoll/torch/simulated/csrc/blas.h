// cuBLAS's workspaces, which products take: the library handle's, which PyTorch keeps for each
// handle and stream, or, from 2.15 on, one that is given back when the product is queued.
#pragma once

#include "call.h"

namespace plimsoll::simulated {

void take_blas_workspace(Call& call);
// cublasLt's, for a product with what follows it.
void take_lt_workspace(Call& call);
// Gives back those that are kept.
void clear_blas_workspaces();

}  // namespace plimsoll::simulated
