// What an operation's results are like, by what its operands are like.
#pragma once

#include <vector>

#include "../call.h"
#include "contents.h"

namespace plimsoll::simulated {

constexpr std::size_t kNoResult = 99;

// A tensor on a device that a call writes.
struct Written {
  at::Tensor tensor;
  std::size_t result = 0;   // which of the results it is; `kNoResult` for none
  std::size_t element = 0;  // its place, where that is a list
};

Known describe_written(const Call& call, const Written& written);

}  // namespace plimsoll::simulated
