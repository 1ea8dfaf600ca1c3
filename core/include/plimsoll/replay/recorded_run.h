// What the recorded allocator did between two things that the program did, and what that tells.
//
// A run holds the recorded events since the last request or free: segments that were taken or given
// back, frees that were completed. Which request, if any, ended it is known only then.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "plimsoll/events/event.h"
#include "plimsoll/events/history.h"

namespace plimsoll {

// The first place where the allocator did something else than the recording says.
struct Difference {
  std::uint64_t event = 0;
  std::optional<TraceEvent> recorded;
  std::optional<TraceEvent> replayed;
};

// Which allocator was recorded, for each gives memory back in its own way.
enum class RecordedAllocator : std::uint8_t {
  native,    // PyTorch's own: between requests it does nothing that it is not told to do
  elastic,   // it moves memory by itself: what is unmapped and mapped in one run went nowhere
  uncached,  // it gives back whatever is freed
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
  // The number of its first event, also after `clear`.
  [[nodiscard]] std::uint64_t start() const { return start_; }
  [[nodiscard]] const std::vector<TraceEvent>& events() const { return events_; }
  // Whether the program told the allocator to do this, no request having followed.
  [[nodiscard]] bool was_told() const {
    return by_ == RecordedAllocator::native ? !is_cut_free() : released_any();
  }

  // Calls function(const TraceEvent&) for everything that went back to the driver.
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
  // The one pool that memory went back from; nothing if there is none, or several.
  [[nodiscard]] std::optional<PoolId> emptied_pool() const;

  // Compares what the allocator did, its history, with this run and the request, of number `index`,
  // that ended it, if one did; tells `first`, unless it knows one, of the first difference. The
  // order in which frees of several streams complete is left open, as PyTorch leaves it.
  void compare(const TraceEvent* request, std::uint64_t index, const History& history,
               std::optional<Difference>& first) const;

 private:
  // A history that was cut between a free and its completion begins with the latter.
  [[nodiscard]] bool is_cut_free() const {
    return start_ == 0 && events_.size() == 1 && events_.front().action == Action::free_completed;
  }
  [[nodiscard]] static bool is_release(const TraceEvent& event) {
    return event.action == Action::segment_free || event.action == Action::segment_unmap;
  }
  [[nodiscard]] static bool is_growth(const TraceEvent& event) {
    return event.action == Action::segment_alloc || event.action == Action::segment_map;
  }
  // Whether the releases of this run are any, and not what the allocator does by itself.
  [[nodiscard]] bool gave_back() const;

  RecordedAllocator by_;
  std::vector<TraceEvent> events_;
  std::uint64_t start_ = 0;
};

}  // namespace plimsoll
