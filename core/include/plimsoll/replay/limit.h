// Infers the memory limit under which a recording was made. The file does not name the limit.
//
// The limit is at least the most memory that the allocator ever had reserved.
//
// Upper bounds come from requests that failed, and from requests before which cached memory was
// released: reserved memory plus such a request would have exceeded the limit. With garbage
// collection, a release can also mean that reserved memory exceeded the threshold, which is a known
// fraction of the limit.
//
// If a release cannot come from a limit, the program emptied its cache. The program may then have
// caused the other releases too. Such a recording shows no limit, unless a request failed or
// garbage collection was on.
#pragma once

#include <optional>
#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/replay/events.h"

namespace plimsoll {

class LimitEvidence {
 public:
  LimitEvidence(const AllocatorConfig& config, Bytes reserved_at_start)
      : config_(config), reserved_(reserved_at_start), largest_(reserved_at_start) {}

  void feed(const EventSpan& events);

  // Returns whether segments were recorded; without them a replay has nothing to be compared with.
  [[nodiscard]] bool has_segments() const { return has_segments_; }
  struct Range {
    Bytes least = 0;
    Bytes below = 0;
  };
  // Returns the range of the limit, least <= limit < below; nothing if the recording shows no
  // limit.
  [[nodiscard]] std::optional<Range> range() const;

 private:
  struct Refusal {   // a request before which cached memory went back to the driver
    Bytes reserved;  // bytes reserved before the release
    Bytes wanted;
    bool failed;  // whether the request failed even after the release
  };

  void request(Bytes size, bool failed);

  const AllocatorConfig config_;
  Bytes reserved_;
  // A lower bound of the limit. The initial value is the bytes reserved at the start. Before a
  // request gets new memory, PyTorch adds the size of the segment that the request needs to the
  // bytes that are reserved. The sum must not exceed the limit, so a higher sum raises the bound.
  Bytes largest_;
  std::vector<Refusal> refusals_;
  bool emptied_by_program_ = false;
  bool has_segments_ = false;
  // The bytes that were reserved just before the first release, and just before the first growth.
  // Each request, free and snapshot empties both values.
  std::optional<Bytes> before_release_;
  std::optional<Bytes> before_growth_;
};

}  // namespace plimsoll
