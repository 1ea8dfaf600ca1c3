// A batch of recorded events, as columns that the caller owns.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

#include "plimsoll/events/event.h"

namespace plimsoll {

// Thrown when events contradict each other. The message names the first impossible event.
class ReplayError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct EventSpan {
  std::span<const std::uint8_t> action;
  std::span<const Address> address;
  std::span<const Bytes> size;
  std::span<const StreamId> stream;
  std::span<const std::uint64_t> pool_first;
  std::span<const std::uint64_t> pool_second;

  [[nodiscard]] std::size_t count() const { return action.size(); }
  [[nodiscard]] TraceEvent operator[](std::size_t i) const {
    return {static_cast<Action>(action[i]),  address[i], size[i], stream[i],
            {pool_first[i], pool_second[i]}, 0,          0};
  }
};

}  // namespace plimsoll
