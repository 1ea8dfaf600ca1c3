// A program on both allocators, step by step: after each operation the addresses, errors,
// statistics and memory of the driver must be equal, now and then all blocks, at the end the whole
// history.
#pragma once

#include <cstdint>
#include <string>

#include "program.h"

struct Verdict {
  std::string difference;        // the first one, in several lines; empty if there is none
  std::uint64_t operations = 0;  // those that made sense where they stood
};

// At most once in a process.
[[nodiscard]] Verdict compare(const Program& program);
