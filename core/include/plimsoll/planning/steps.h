// Finds the steps that a program repeats in the sequence of its large requests.
//
// Time is counted in large requests of the stream. Two requests are alike if they ask for the same
// size and live equally long, or if other streams use both. A section repeats where each request is
// like the one a step earlier and is freed within a step's length. Then one slot can serve that
// request in every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

struct TimedRequest {
  Bytes size = 0;
  std::uint32_t end = 0;  // number of the first request after its free, or of requests in all
  // Whether another stream uses the block. Such a block is not planned, because it depends on time
  // when that stream is done with it.
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
  same_size,     // equal sizes, and equally long lives
  similar_size,  // sizes from half to twice, and equally long lives
};

// Divides all requests into sections, in order.
[[nodiscard]] std::vector<Section> find_sections(std::span<const TimedRequest> requests,
                                                 Likeness likeness);

}  // namespace plimsoll
