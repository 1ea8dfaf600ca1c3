// Finds the steps that a program repeats, such as those of a training loop. A step is a sequence of
// large requests of one stream. A section is one step and all its repetitions in a row, or requests
// that do not repeat.
//
// Time is counted in large requests of the stream. Two requests are alike if they ask for the same
// size (or for similar sizes, see `Likeness`) and their blocks live equally long. If other
// streams use the blocks of both requests, only the sizes are compared, and they must be equal.
//
// A step repeats if two conditions hold. Each request is like the request at the same position in
// the step before. Each block that only this stream uses is freed within one step's length. In the
// plan, one slot then serves all requests at the same position of their steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

struct TimedRequest {
  Bytes size = 0;
  // The time at which the block is freed: the number of the first request after the free. For a
  // block that is never freed, the count of all requests.
  std::uint32_t end = 0;
  // Whether another stream uses the block. Such a block is not planned, because the moment when
  // that stream is done with it is not known in advance.
  bool is_shared = false;
};

// The requests with the numbers `first` to `end() - 1`. They are a sequence of `length` requests,
// `times` times in a row.
struct Section {
  std::uint32_t first = 0;
  std::uint32_t length = 0;
  std::uint32_t times = 1;
  [[nodiscard]] std::uint32_t end() const { return first + length * times; }
};

enum class Likeness : std::uint8_t {
  same_size,     // equal sizes, and equally long lives
  similar_size,  // sizes that differ at most by a factor of 2, and equally long lives
};

// Divides all requests into sections, in order.
[[nodiscard]] std::vector<Section> find_sections(std::span<const TimedRequest> requests,
                                                 Likeness likeness);

}  // namespace plimsoll
