// Finds the steps that a program repeats in the sequence of its large requests.
//
// Time is counted in large requests of the stream. Two requests are alike if they ask for the same
// size and live equally long, or if other streams use both. A section repeats where each request is
// like the one a step before it, and none outlives the step after its own: then one slot can serve
// it in every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

struct TimedRequest {
  Bytes size = 0;
  std::uint32_t end = 0;  // number of the first request after its free; of all if there is none
  // Another stream uses the block. When that one is done is a matter of time and of no plan.
  bool is_shared = false;
};

// Requests first, first + 1, … first + length * times - 1.
struct Section {
  std::uint32_t first = 0;
  std::uint32_t length = 0;
  std::uint32_t times = 1;
  [[nodiscard]] std::uint32_t end() const { return first + length * times; }
};

enum class Likeness : std::uint8_t {
  same_size,     // and as long a life
  similar_size,  // at most twice or half, and as long a life
};

// All requests, in sections by their order.
[[nodiscard]] std::vector<Section> find_sections(std::span<const TimedRequest> requests,
                                                 Likeness likeness);

}  // namespace plimsoll
