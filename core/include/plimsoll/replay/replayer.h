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
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plimsoll/allocator/native/native.h"
#include "plimsoll/base/address_map.h"
#include "plimsoll/replay/events.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// When a free that waited for another stream is done: when it was in the recording, at once, or
// only when the allocator waits for it. The last two bound what another timing could have given.
enum class Completion : std::uint8_t { recorded, at_once, late };

// The first place where the allocator did something else than the recording says.
struct Difference {
  std::uint64_t event = 0;
  std::optional<TraceEvent> recorded;
  std::optional<TraceEvent> replayed;
};

// Where the bytes were when the most was reserved, and after which event.
struct PeakState {
  std::uint64_t event = 0;
  Bytes reserved = 0;
  Bytes active = 0;
  Bytes allocated = 0;
  Bytes requested = 0;  // of the active blocks
  Bytes inactive_split = 0;
};

struct ReplayOptions {
  bool compare = false;
  Completion completion = Completion::recorded;
  // The events before which the program emptied the cache; none: find out, which needs `compare`.
  const std::vector<std::uint64_t>* emptied = nullptr;
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
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const std::optional<std::uint64_t>& first_oom() const { return first_oom_; }
  [[nodiscard]] const std::optional<OutOfMemoryReport>& first_oom_report() const {
    return first_oom_report_;
  }
  // Requests that failed in the recording but not here.
  [[nodiscard]] std::uint64_t avoided_ooms() const { return avoided_ooms_; }
  [[nodiscard]] bool had_pending_frees() const { return had_pending_frees_; }
  [[nodiscard]] const PeakState& peak() const { return peak_; }
  [[nodiscard]] TierMeter& tiers() { return tiers_; }
  [[nodiscard]] const std::optional<Difference>& first_difference() const { return difference_; }
  [[nodiscard]] const std::vector<std::uint64_t>& emptied() const { return emptied_; }

 private:
  void request_again(const std::vector<SegmentInfo>& segments);
  void step(const TraceEvent& event);
  void request(const TraceEvent& event);
  void keep(Address address, Block* block);
  void free_now(const TraceEvent& event);
  void free_later(const TraceEvent& event);
  void complete(const TraceEvent& event);
  void complete_run();
  Block* take(Address address, std::uint64_t event);
  void wait_for_recording(Block* block, Address address);

  void use_pool(PoolId pool);
  [[nodiscard]] bool is_capturing(PoolId pool) const;
  void prepare_request(const TraceEvent& event);
  [[nodiscard]] bool releases_only_oversize() const;
  void feed_address(const TraceEvent& segment, Bytes request);
  void empty_cache();
  void release_emptied_pools();
  void end_run();
  void note_peak();
  void check(const TraceEvent* request);
  // Why cached memory went back to the driver before a request.
  enum class Release : std::uint8_t { none, emptied, collected, refused };
  [[nodiscard]] Release release_before(const TraceEvent& event);
  void differ(std::uint64_t event, std::optional<TraceEvent> recorded,
              std::optional<TraceEvent> replayed);

  Allocator& allocator_;
  SimulatedDriver& driver_;
  NativeAllocator* native_;
  TierMeter tiers_;
  ReplayOptions options_;

  std::uint64_t index_ = 0;  // of the event at hand
  // A free requested by the event before: the event at hand says how it ends.
  std::optional<TraceEvent> free_;
  std::vector<TraceEvent> run_;  // what the allocator did since the last request or free
  std::uint64_t run_start_ = 0;
  AddressMap<Block*> live_;                        // by recorded address
  std::unordered_map<Address, StreamId> waiting_;  // freed, not done; a made-up stream each
  std::vector<StreamId> idle_streams_;
  StreamId next_stream_;
  PoolId pool_;
  std::map<PoolId, int> pool_uses_;

  bool stopped_ = false;
  bool had_pending_frees_ = false;
  std::optional<std::uint64_t> first_oom_;
  std::optional<OutOfMemoryReport> first_oom_report_;
  std::uint64_t avoided_ooms_ = 0;
  PeakState peak_;
  std::optional<Difference> difference_;
  std::vector<std::uint64_t> emptied_;
  std::size_t next_emptied_ = 0;
};

}  // namespace plimsoll
