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

class RecordedRun {
 public:
  void add(const TraceEvent& event, std::uint64_t index) {
    if (events_.empty()) start_ = index;
    events_.push_back(event);
  }
  void clear() { events_.clear(); }

  [[nodiscard]] bool is_empty() const { return events_.empty(); }
  // The number of its first event, also after `clear`.
  [[nodiscard]] std::uint64_t start() const { return start_; }
  [[nodiscard]] const std::vector<TraceEvent>& events() const { return events_; }
  // A history that was cut between a free and its completion begins with the latter.
  [[nodiscard]] bool is_cut_free() const {
    return start_ == 0 && events_.size() == 1 && events_.front().action == Action::free_completed;
  }

  // Calls function(const TraceEvent&) for everything that went back to the driver.
  template <typename Function>
  void for_each_release(Function function) const {
    for (const TraceEvent& event : events_) {
      if (is_release(event)) function(event);
    }
  }
  template <typename Matches>
  [[nodiscard]] bool released_any(Matches matches) const {
    return std::any_of(events_.begin(), events_.end(), [&](const TraceEvent& event) {
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
  [[nodiscard]] static bool is_release(const TraceEvent& event) {
    return event.action == Action::segment_free || event.action == Action::segment_unmap;
  }

  std::vector<TraceEvent> events_;
  std::uint64_t start_ = 0;
};

}  // namespace plimsoll
