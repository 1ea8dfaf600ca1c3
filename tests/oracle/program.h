// A program for an allocator, as data: the GPU's memory, the settings, and operations one after the
// other.
//
// As text it is one line: "gpu 1073741824 max_split_size_mb:64; malloc 512 0; free 0". A part of
// a program is a program, too, because an operation that makes no sense in its place does nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/base/units.h"

enum class Verb : std::uint8_t {
  malloc,      // size, stream
  malloc_at,   // which of the free blocks, offset in it, size
  free,        // which of the live blocks, counted round and round
  record,      // which, stream: record_stream
  hold,        // stream: it has work until `finish`
  finish,      // stream
  empty,       // pool: empty_cache; 0 is the default one
  use,         // pool: one more holder
  begin,       // pool, 1 + stream or 0 for all: requests go to the pool
  capture,     // the same, for the capture of a graph
  end,         // pool: of `begin` or `capture`
  release,     // pool: one holder fewer
  use_on_oom,  // pool, on
  no_split,    // pool
  limit,       // thousandths of the GPU's memory
  fault,       // call of the driver, after how many, how many times
  heal,        // no more faults
  reset_peak,  //
  reset_sums,  // accumulated statistics
  snapshot,    // compares all blocks as well
  settings,    // which of the program's later settings
  count,
};

struct Operation {
  Verb verb = Verb::malloc;
  std::array<std::uint64_t, 3> numbers{};
};

struct Program {
  plimsoll::Bytes memory = plimsoll::kGiB;
  std::string settings;                     // PYTORCH_CUDA_ALLOC_CONF
  std::vector<std::string> later_settings;  // made while the program runs
  std::vector<Operation> operations;
};

[[nodiscard]] std::string to_text(const Operation& operation);
[[nodiscard]] std::string to_text(const Program& program);
// Throws std::invalid_argument.
[[nodiscard]] Program program_from(std::string_view text);
