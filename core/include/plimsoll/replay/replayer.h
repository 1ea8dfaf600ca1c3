// Runs a recorded history through an allocator, event by event, in constant memory.
//
// What the program did is replayed: requests, frees, and when a free that waited for another stream
// was done. What the allocator did is left to the allocator under test, and checked against the
// recording with `compare`. Only one thing of it is handed on, to the simulated driver: the
// addresses of the recorded segments, in their order, for allocations that are of the same size.
//
// A history says that cached memory was released, but not that the program asked for it with
// empty_cache. Replaying under the recorded configuration tells the two apart: a release that the
// allocator had no reason for was asked for. Those events are kept in `emptied`, and a replay under
// another configuration is given them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plimsoll/allocator/native/native.h"
#include "plimsoll/replay/events.h"
#include "plimsoll/replay/recorded_blocks.h"
#include "plimsoll/replay/recorded_pools.h"
#include "plimsoll/replay/recorded_run.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// Where the bytes were when the most was reserved, and after which event.
struct PeakState {
  std::uint64_t event = 0;
  Bytes reserved = 0;
  Bytes active = 0;
  Bytes allocated = 0;
  Bytes requested = 0;  // of the active blocks
  Bytes inactive_split = 0;

  // Takes over what is now, after the event `at`, if more is reserved than ever.
  void look(std::uint64_t at, const Statistics& now);
};

struct ReplayOptions {
  RecordedAllocator recorded = RecordedAllocator::native;
  bool compare = false;
  Completion completion = Completion::recorded;
  // The events before which the program emptied the cache; none: find out, which needs `compare`.
  const std::vector<std::uint64_t>* emptied = nullptr;
};

// Where requests failed.
struct Failures {
  std::optional<std::uint64_t> first;  // event
  std::optional<OutOfMemoryReport> report;
  std::uint64_t avoided = 0;   // failed in the recording, but not here
  bool ended_program = false;  // one failed that did not in the recording
};

// The events before which the program emptied the cache.
class EmptiedCache {
 public:
  // `known`: what another replay has found; null if this one is to find out.
  explicit EmptiedCache(const std::vector<std::uint64_t>* known) : known_(known) {}

  [[nodiscard]] bool is_known() const { return known_ != nullptr; }
  // Whether it is known to have done so before this event; asked in ascending order.
  [[nodiscard]] bool has(std::uint64_t event) {
    while (next_ < known_->size() && (*known_)[next_] < event) ++next_;
    return next_ < known_->size() && (*known_)[next_] == event;
  }
  void add(std::uint64_t event) { found_.push_back(event); }
  [[nodiscard]] const std::vector<std::uint64_t>& found() const { return found_; }

 private:
  const std::vector<std::uint64_t>* known_;
  std::size_t next_ = 0;
  std::vector<std::uint64_t> found_;
};

class Replayer {
 public:
  // `native` is the allocator itself if it is one: comparing and restoring need its rules.
  Replayer(Allocator& allocator, SimulatedDriver& driver, NativeAllocator* native,
           const ReplayOptions& options);

  // Begins from this state instead of from nothing.
  void restore(const std::vector<SegmentInfo>& segments);

  // Throws ReplayError if an event cannot follow those before it.
  // Calls `poll` every few thousand events; what it throws ends the replay there.
  void feed(const EventSpan& events, const std::function<void()>& poll = {});
  void finish();

  [[nodiscard]] std::uint64_t events() const { return index_; }
  // The program ran out of memory where the recorded one did not: nothing after it is known.
  [[nodiscard]] bool stopped() const { return failures_.ended_program; }
  [[nodiscard]] const std::optional<std::uint64_t>& first_oom() const { return failures_.first; }
  [[nodiscard]] const std::optional<OutOfMemoryReport>& first_oom_report() const {
    return failures_.report;
  }
  // Requests that failed in the recording but not here.
  [[nodiscard]] std::uint64_t avoided_ooms() const { return failures_.avoided; }
  [[nodiscard]] bool had_pending_frees() const { return blocks_.had_pending_frees(); }
  [[nodiscard]] const PeakState& peak() const { return peak_; }
  [[nodiscard]] TierMeter& tiers() { return tiers_; }
  [[nodiscard]] const std::optional<Difference>& first_difference() const { return difference_; }
  [[nodiscard]] const std::vector<std::uint64_t>& emptied() const { return emptied_.found(); }

 private:
  // Why cached memory went back to the driver before a request.
  enum class Release : std::uint8_t { none, emptied, collected, refused };

  void step(const TraceEvent& event);
  void request(const TraceEvent& event);
  void free_later(const TraceEvent& event);
  void prepare_request(const TraceEvent& event);
  [[nodiscard]] Release release_before(const TraceEvent& event);
  [[nodiscard]] bool waits_for_streams(const TraceEvent& request) const;
  void feed_addresses(Bytes request);
  void complete_run();
  void empty_cache();
  void end_run();
  void compare(const TraceEvent* request);

  Allocator& allocator_;
  SimulatedDriver& driver_;
  NativeAllocator* native_;
  TierMeter tiers_;
  ReplayOptions options_;

  std::uint64_t index_ = 0;  // of the event at hand
  std::optional<TraceEvent>
      free_;  // requested by the event before; the one at hand says how it ends
  RecordedRun run_;
  RecordedBlocks blocks_;
  RecordedPools pools_;

  Failures failures_;
  PeakState peak_;
  std::optional<Difference> difference_;
  EmptiedCache emptied_;
};

}  // namespace plimsoll
