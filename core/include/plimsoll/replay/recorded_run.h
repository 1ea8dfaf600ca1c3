// The actions of the recorded allocator between two actions of the program. From these actions, the
// class concludes for example whether the program emptied the cache.
//
// A run holds the recorded events since the last request or free: segments taken or returned, frees
// completed. The replay interprets these events at the end of the run, because the request that
// ends the run may be their cause.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "plimsoll/events/event.h"
#include "plimsoll/events/history.h"

namespace plimsoll {

// The first event at which the replayed allocator acted differently from the recorded one.
struct Difference {
  std::uint64_t event = 0;
  std::optional<TraceEvent> recorded;
  std::optional<TraceEvent> replayed;
};

// The kind of allocator that was recorded. Each kind gives memory back in its own way.
enum class RecordedAllocator : std::uint8_t {
  native,    // PyTorch's own; between requests, acts only when the program calls the allocator
  elastic,   // moves memory by itself, unmapping and mapping it in one run
  uncached,  // gives a block's memory back to the driver within the call that frees it
};

class RecordedRun {
 public:
  explicit RecordedRun(RecordedAllocator by) : by_(by) {}

  void add(const TraceEvent& event, std::uint64_t index) {
    if (events_.empty()) start_ = index;
    events_.push_back(event);
  }
  void clear() { events_.clear(); }

  [[nodiscard]] bool is_empty() const { return events_.empty(); }
  // Returns the number of the run's first event, also after `clear`.
  [[nodiscard]] std::uint64_t start() const { return start_; }
  [[nodiscard]] const std::vector<TraceEvent>& events() const { return events_; }
  // Returns whether the program caused this run by calling the allocator. Call this only if no
  // request ended the run.
  [[nodiscard]] bool was_told() const {
    return by_ == RecordedAllocator::native ? !is_cut_free() : released_any();
  }

  // Calls function(const TraceEvent&) for each release of memory to the driver. If gave_back() is
  // false, there are no calls.
  template <typename Function>
  void for_each_release(Function function) const {
    if (!gave_back()) return;
    for (const TraceEvent& event : events_) {
      if (is_release(event)) function(event);
    }
  }
  template <typename Matches>
  [[nodiscard]] bool released_any(Matches matches) const {
    return gave_back() && std::any_of(events_.begin(), events_.end(), [&](const TraceEvent& event) {
             return is_release(event) && matches(event);
           });
  }
  [[nodiscard]] bool released_any() const {
    return released_any([](const TraceEvent&) { return true; });
  }
  // Returns the pool whose memory this run released; nothing if the run released no memory, or
  // memory of several pools.
  [[nodiscard]] std::optional<PoolId> emptied_pool() const;

  // Compares the allocator's `history` with this run and with `request`, the request that ended the
  // run. `index` is the number of that request's event. If no request ended the run, `request` is
  // null. Sets `first` to the first difference, unless `first` is set already. Does not compare
  // completed frees, because PyTorch completes the frees of several streams in no fixed order.
  void compare(const TraceEvent* request, std::uint64_t index, const History& history,
               std::optional<Difference>& first) const;

 private:
  // Returns whether the recording begins with the completion of a free and lacks the program's
  // request for this free, because the history was cut between the two events.
  [[nodiscard]] bool is_cut_free() const {
    return start_ == 0 && events_.size() == 1 && events_.front().action == Action::free_completed;
  }
  [[nodiscard]] static bool is_release(const TraceEvent& event) {
    return event.action == Action::segment_free || event.action == Action::segment_unmap;
  }
  [[nodiscard]] static bool is_growth(const TraceEvent& event) {
    return event.action == Action::segment_alloc || event.action == Action::segment_map;
  }
  // Returns whether the releases in this run count as memory given back: always for PyTorch's
  // allocator, never for the uncached one, and for the elastic one if it released more than it
  // took.
  [[nodiscard]] bool gave_back() const;

  RecordedAllocator by_;
  std::vector<TraceEvent> events_;
  std::uint64_t start_ = 0;
};

}  // namespace plimsoll
