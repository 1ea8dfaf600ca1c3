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

// The kind of an operation. Each comment lists the arguments, then after a colon the effect.
enum class Verb : std::uint8_t {
  malloc,      // size, stream
  malloc_at,   // index of a free block, offset in it, size
  free,        // index of a live block, modulo the number of live blocks
  record,      // index of a live block, stream: calls record_stream
  hold,        // stream: gets work that lasts until `finish`
  finish,      // stream: completes its work
  empty,       // 1 + pool (0 means the default pool): calls empty_cache
  use,         // pool: adds a holder
  begin,       // pool, 1 + stream (0 means all streams): sends the streams' requests to the pool
  capture,     // pool, 1 + stream (0 means all streams): as `begin`, and captures a graph
  end,         // pool: ends `begin` or `capture`
  release,     // pool: removes a holder
  use_on_oom,  // pool, 1 or 0: switches PoolOption::use_on_oom on or off
  no_split,    // pool: blocks of the pool are not split from now on
  limit,       // thousandths of the GPU's memory: sets the memory limit
  fault,       // driver call, number of successes, number of failures after them: injects faults
  heal,        // no argument: ends all faults
  reset_peak,  // no argument: resets the peaks in the statistics
  reset_sums,  // no argument: resets the accumulated statistics
  snapshot,    // no argument: compares all blocks
  settings,    // index in `later_settings`: applies the settings at this index
  count,
};

struct Operation {
  Verb verb = Verb::malloc;
  std::array<std::uint64_t, 3> numbers{};
};

struct Program {
  plimsoll::Bytes memory = plimsoll::kGiB;
  std::string settings;                     // in the format of PYTORCH_CUDA_ALLOC_CONF
  std::vector<std::string> later_settings;  // applied while the program runs
  std::vector<Operation> operations;
};

[[nodiscard]] std::string to_text(const Operation& operation);
[[nodiscard]] std::string to_text(const Program& program);
// Parses a program's text. Throws std::invalid_argument if the text is no program.
[[nodiscard]] Program program_from(std::string_view text);
