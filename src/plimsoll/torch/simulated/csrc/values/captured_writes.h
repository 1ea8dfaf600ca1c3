// What CUDA graphs write: nothing while they are captured is computed, for each replay finds other
// numbers. What is known of these holds for all replays, and they are drawn anew at each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "values/contents.h"

namespace plimsoll::simulated {

// It keeps no memory alive.
struct CapturedWrite {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin;
  Contents::Part part;
};

// Notes that the graph of the part's capture writes it.
void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part);
// All writes of a graph, in order.
std::vector<CapturedWrite> captured_writes(std::uint64_t capture);
void forget_writes(std::uint64_t capture);

}  // namespace plimsoll::simulated
