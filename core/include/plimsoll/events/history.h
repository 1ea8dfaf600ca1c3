// A ring buffer of the newest events of one device. Index 0 is the oldest event in the buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plimsoll/events/event.h"

namespace plimsoll {

class History {
 public:
  // Keeps at most `max_entries` events; 0 switches recording off and clears the history.
  void record_up_to(std::size_t max_entries) {
    max_entries_ = max_entries;
    clear();
  }
  [[nodiscard]] bool is_recording() const { return max_entries_ > 0; }

  void add(const TraceEvent& event) {
    if (events_.size() < max_entries_) {
      events_.push_back(event);
    } else {
      events_[oldest_] = event;
      oldest_ = oldest_ + 1 == max_entries_ ? 0 : oldest_ + 1;
      ++dropped_;
    }
  }

  void clear() {
    events_.clear();
    oldest_ = 0;
    dropped_ = 0;
  }

  [[nodiscard]] std::size_t size() const { return events_.size(); }
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }
  [[nodiscard]] const TraceEvent& operator[](std::size_t index) const {
    const std::size_t place = oldest_ + index;
    return events_[place < events_.size() ? place : place - events_.size()];
  }

 private:
  std::vector<TraceEvent> events_;
  std::size_t max_entries_ = 0;
  std::size_t oldest_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace plimsoll
