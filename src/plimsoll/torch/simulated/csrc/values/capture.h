// What CUDA graphs write: nothing while they are captured is computed, for each replay finds other
// numbers. What is known of these holds for all replays, and they are drawn anew at each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "contents.h"

namespace plimsoll::simulated {

// The capture that is under way on the device; 0 for none.
std::uint64_t current_capture(c10::DeviceIndex device);
// Begins or ends one, and says which.
std::uint64_t set_capturing(c10::DeviceIndex device, bool on);
// Notes that the graph under way on the device has a kernel that takes so long.
void note_captured_work(c10::DeviceIndex device, double ns);
// Notes that the graph writes it, which keeps no memory alive.
void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part);
void replay(std::uint64_t capture);
void forget_capture(std::uint64_t capture);

}  // namespace plimsoll::simulated
