// The limit that a recording ran under, which the file does not name.
//
// Whatever was reserved was within the limit; where cached memory was released although nothing
// else explains it, the request that followed was not. Between the two lies the limit. With
// garbage collection the same holds for its threshold, a stated part of the limit. A program that
// never ran out of memory and at times surely emptied its cache by itself shows no limit.
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

  // Whether segments were recorded at all; without them there is nothing to compare a replay with.
  [[nodiscard]] bool has_segments() const { return has_segments_; }
  struct Range {
    Bytes least = 0;
    Bytes below = 0;
  };
  // least <= limit < below; nothing if the recording shows no sign of a limit.
  [[nodiscard]] std::optional<Range> range() const;

 private:
  struct Refusal {   // cached memory went back to the driver before a request was served
    Bytes reserved;  // before
    Bytes wanted;
    bool failed;  // not even then was it served
  };

  void request(Bytes size, bool failed);

  const AllocatorConfig config_;
  Bytes reserved_;
  Bytes largest_;  // of reserved + what was asked for and given
  std::vector<Refusal> refusals_;
  bool emptied_by_program_ = false;
  bool has_segments_ = false;
  // Since the last request or free:
  std::optional<Bytes> before_release_;
  std::optional<Bytes> before_growth_;
};

}  // namespace plimsoll
