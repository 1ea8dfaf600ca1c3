// What depends on PyTorch's version: a row of data/torch_versions.csv.
#pragma once

#include <cstdint>

namespace plimsoll::simulated {

// The columns of data/torch_versions.csv, which says what they are.
struct TorchRules {
  std::int64_t version, cuda, triton, nccl_successor, keeps_workspaces, lt_workspaces,
      atomic_embedding_gradients, short_half_normals;
};

// The row of the PyTorch that runs. A version that the table lacks takes the nearest row, and the
// report says so.
const TorchRules& torch_rules();

}  // namespace plimsoll::simulated
