// The writes of CUDA graphs. Nothing is computed during a capture, because each replay finds other
// numbers. Knowledge of the written tensors holds for all replays, and each replay draws their
// numbers anew.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "values/contents.h"

namespace plimsoll::simulated {

// A write, without keeping its memory alive.
struct CapturedWrite {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin;
  Contents::Part part;
};

// Notes that the graph of the part's capture writes this tensor.
void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part);
// Returns all writes of a graph, in order.
std::vector<CapturedWrite> captured_writes(std::uint64_t capture);
void forget_writes(std::uint64_t capture);

}  // namespace plimsoll::simulated
