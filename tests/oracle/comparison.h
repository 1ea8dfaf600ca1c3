// Runs a program step by step on PyTorch's allocator and on plimsoll's `native`. After each
// operation both must agree in addresses, errors, statistics and the driver's memory. After some
// operations all blocks are compared too, and at the end the whole history.
#pragma once

#include <cstdint>
#include <string>

#include "program.h"

struct Verdict {
  std::string difference;  // the first difference, in several lines; empty if there is none
  // how many operations were carried out; those that made no sense are not counted
  std::uint64_t operations = 0;
};

// Compares both allocators. A process can do this only once.
[[nodiscard]] Verdict compare(const Program& program);
