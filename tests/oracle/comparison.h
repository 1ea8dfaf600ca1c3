// Runs a program step by step on PyTorch's allocator and on plimsoll's `native`. After each
// operation both allocators must agree in addresses, errors, statistics and the driver's memory.
// After some operations, all blocks must agree too. At the end the whole history must agree.
#pragma once

#include <cstdint>
#include <string>

#include "program.h"

struct Verdict {
  std::string difference;  // the first difference, in several lines; empty if there is none
  // the number of operations that were carried out, without operations that made no sense
  std::uint64_t operations = 0;
};

// Compares both allocators. A process can do this only once.
[[nodiscard]] Verdict compare(const Program& program);
