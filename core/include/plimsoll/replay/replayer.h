// Runs a recorded history through an allocator, event by event, in constant memory.
//
// The replay repeats the program's actions: requests, frees, and the completion of frees that
// waited for another stream. The allocator under test makes its own decisions, which `compare`
// checks against the recording. Only the addresses of segments come from the recording: for an
// allocation, the simulated driver returns the next recorded address of a segment of this size.
//
// A history shows that cached memory was released, but not whether the program called empty_cache.
// To find out, replay the history under the recorded configuration: if the replayed allocator had
// no reason for a release, the program caused that release. `emptied` returns the events before
// which the program emptied the cache. A replay under another configuration needs this list.
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

// The number of the event with the most active memory among those at which reserved memory was at
// its peak, and the bytes in each state at that time. A program may reserve its peak early and fill
// it later.
struct PeakState {
  std::uint64_t event = 0;
  Bytes reserved = 0;
  Bytes active = 0;
  Bytes allocated = 0;
  Bytes requested = 0;  // requested sizes of the active blocks
  Bytes inactive_split = 0;

  // Stores the statistics `now` as the peak if they show more reserved memory than the peak so far,
  // or as much reserved and more active memory. `at` is the number of the event that was just
  // replayed.
  void look(std::uint64_t at, const Statistics& now);
};

struct ReplayOptions {
  RecordedAllocator recorded = RecordedAllocator::native;
  bool compare = false;
  Completion completion = Completion::recorded;
  // The events before which the program emptied the cache. If this is null, the replay finds these
  // events itself; for that, `compare` must be true.
  const std::vector<std::uint64_t>* emptied = nullptr;
};

// The requests that failed.
struct Failures {
  std::optional<std::uint64_t> first;  // number of the first failed request's event
  std::optional<OutOfMemoryReport> report;
  std::uint64_t avoided = 0;   // number of requests that failed in the recording, but not here
  bool ended_program = false;  // a request failed that succeeded in the recording
};

// The events before which the program emptied the cache.
class EmptiedCache {
 public:
  // Takes `known`, the events that another replay found; null if this replay is to find them.
  explicit EmptiedCache(const std::vector<std::uint64_t>* known) : known_(known) {}

  [[nodiscard]] bool is_known() const { return known_ != nullptr; }
  // Returns whether the program emptied the cache before this event. Call it with ascending events.
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
  // If `allocator` is a NativeAllocator, `native` must point to it too; otherwise `native` is null.
  // Only with `native` can the replay find out why memory was released, and restore each block at
  // its recorded address.
  Replayer(Allocator& allocator, SimulatedDriver& driver, NativeAllocator* native,
           const ReplayOptions& options);

  // Makes the replay start with these segments and their blocks, not with an empty allocator.
  void restore(const std::vector<SegmentInfo>& segments);

  // Replays events. Throws ReplayError if an event cannot follow those before it. Calls `poll`
  // every few thousand events; an exception from `poll` ends the replay there.
  void feed(const EventSpan& events, const std::function<void()>& poll = {});
  void finish();

  [[nodiscard]] std::uint64_t events() const { return index_; }
  // Returns whether a request failed that succeeded in the recording. The recording does not show
  // how the program would have gone on after such a failure.
  [[nodiscard]] bool stopped() const { return failures_.ended_program; }
  [[nodiscard]] const std::optional<std::uint64_t>& first_oom() const { return failures_.first; }
  [[nodiscard]] const std::optional<OutOfMemoryReport>& first_oom_report() const {
    return failures_.report;
  }
  // Returns the number of requests that failed in the recording but not here.
  [[nodiscard]] std::uint64_t avoided_ooms() const { return failures_.avoided; }
  [[nodiscard]] bool had_pending_frees() const { return blocks_.had_pending_frees(); }
  [[nodiscard]] const PeakState& peak() const { return peak_; }
  [[nodiscard]] TierMeter& tiers() { return tiers_; }
  [[nodiscard]] const std::optional<Difference>& first_difference() const { return difference_; }
  [[nodiscard]] const std::vector<std::uint64_t>& emptied() const { return emptied_.found(); }

 private:
  // The reason why cached memory went back to the driver before a request. `none`: no memory went
  // back. `emptied`: the program emptied the cache. `collected`: the allocator collected garbage.
  // `refused`: the driver or the limit first refused new memory for the request.
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

  std::uint64_t index_ = 0;  // number of the current event
  // The previous event, if it requested a free. If the current event completes this free, the free
  // waited for no stream.
  std::optional<TraceEvent> free_;
  RecordedRun run_;
  RecordedBlocks blocks_;
  RecordedPools pools_;

  Failures failures_;
  PeakState peak_;
  std::optional<Difference> difference_;
  EmptiedCache emptied_;
};

}  // namespace plimsoll
