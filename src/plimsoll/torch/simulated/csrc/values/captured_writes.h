// The writes of CUDA graphs. Values are not computed during a capture, because each replay works on
// other numbers. The description of a written tensor holds for all replays. Each replay draws new
// numbers for the tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "values/contents.h"

namespace plimsoll::simulated {

// A write of a CUDA graph. This record does not keep the written memory alive.
struct CapturedWrite {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin;
  Contents::Part part;
};

// Notes that a graph writes this tensor; `part` names the graph's capture.
void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part);
// Returns all writes of a graph in the order of the capture.
std::vector<CapturedWrite> captured_writes(std::uint64_t capture);
void forget_writes(std::uint64_t capture);

}  // namespace plimsoll::simulated
