// A queue of events. Threads that allocate or free memory add events. One thread takes the events
// out with `drain` and writes them to a recording.
//
// Adding an event copies it under a lock that protects nothing else, and never allocates. An event
// that finds no room is dropped and counted, so memory is bounded however slow the writer is.
// Events added == events drained + dropped + waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "plimsoll/events/event.h"

namespace plimsoll {

struct DeviceEvent {
  TraceEvent event;
  std::int32_t device = 0;
};

class EventBuffer {
 public:
  explicit EventBuffer(std::size_t capacity) : capacity_(capacity) {
    filling_.reserve(capacity);
    drained_.reserve(capacity);
  }

  void add(std::int32_t device, const TraceEvent& event) {
    const std::scoped_lock lock(mutex_);
    if (filling_.size() < capacity_) {
      filling_.push_back({event, device});
    } else {
      ++dropped_;
    }
  }

  // Returns all waiting events, oldest first. The vector is valid until the next `drain`. Only one
  // thread may call `drain`.
  [[nodiscard]] const std::vector<DeviceEvent>& drain() {
    drained_.clear();
    const std::scoped_lock lock(mutex_);
    std::swap(filling_, drained_);
    return drained_;
  }

  // Releases the buffer's memory; events that are added later are dropped.
  void close() {
    std::vector<DeviceEvent>().swap(drained_);
    const std::scoped_lock lock(mutex_);
    std::vector<DeviceEvent>().swap(filling_);
    capacity_ = 0;
  }

  // Returns the number of events dropped since the buffer was made.
  [[nodiscard]] std::uint64_t dropped() const {
    const std::scoped_lock lock(mutex_);
    return dropped_;
  }

 private:
  mutable std::mutex mutex_;  // protects all members except `drained_`
  std::vector<DeviceEvent> filling_;
  std::vector<DeviceEvent> drained_;
  std::size_t capacity_;
  std::uint64_t dropped_ = 0;
};

}  // namespace plimsoll
