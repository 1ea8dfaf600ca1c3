// Events on their way from the threads that allocate to the one that writes them down.
//
// Adding one copies it under a lock that is held for nothing else, and never allocates. What finds
// no room is dropped and counted, so that memory is bounded however slow the writer is:
// events added == events drained + dropped + waiting.
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

  // All that waited, in the order of adding; it is valid until the next call. For one thread.
  [[nodiscard]] const std::vector<DeviceEvent>& drain() {
    drained_.clear();
    const std::scoped_lock lock(mutex_);
    std::swap(filling_, drained_);
    return drained_;
  }

  // Gives the memory back; whatever is added from now on is dropped.
  void close() {
    std::vector<DeviceEvent>().swap(drained_);
    const std::scoped_lock lock(mutex_);
    std::vector<DeviceEvent>().swap(filling_);
    capacity_ = 0;
  }

  // Since the buffer was made.
  [[nodiscard]] std::uint64_t dropped() const {
    const std::scoped_lock lock(mutex_);
    return dropped_;
  }

 private:
  mutable std::mutex mutex_;  // of all but `drained_`
  std::vector<DeviceEvent> filling_;
  std::vector<DeviceEvent> drained_;
  std::size_t capacity_;
  std::uint64_t dropped_ = 0;
};

}  // namespace plimsoll
