// Notes what the kernels of a CUDA graph write. During the capture, plimsoll computes no values,
// because each replay works on other numbers. plimsoll only describes the numbers of each written
// tensor (description.h). Each replay draws new numbers that fit this description.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "values/contents.h"

namespace plimsoll::simulated {

// One range of bytes that a CUDA graph writes. This record does not keep the memory alive.
struct CapturedWrite {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin;
  Contents::Part part;
};

// Notes that a graph writes `part`, a range of bytes that starts at byte `begin` of the tensor's
// allocation. `part.capture` tells which graph.
void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part);
// Returns all writes of a graph in the order of the capture.
std::vector<CapturedWrite> captured_writes(std::uint64_t capture);
void forget_writes(std::uint64_t capture);

}  // namespace plimsoll::simulated
