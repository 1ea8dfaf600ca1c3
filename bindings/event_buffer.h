// The buffer in which events wait until Python writes them to a recording. A buffer object is never
// destroyed, because another thread may still add an event after the buffer was closed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/events/event_buffer.h"

namespace plimsoll::python {

class RecordingBuffer {
 public:
  explicit RecordingBuffer(std::size_t capacity) : events_(capacity) {}

  [[nodiscard]] EventBuffer& events() { return events_; }
  // Returns the mutex to hold while draining or closing the buffer.
  [[nodiscard]] std::mutex& draining() { return draining_; }
  // Returns an observer that adds the events of this device's allocator.
  [[nodiscard]] std::unique_ptr<Observer> observer(std::int32_t device) {
    return std::make_unique<DeviceObserver>(events_, device);
  }

 private:
  class DeviceObserver final : public Observer {
   public:
    DeviceObserver(EventBuffer& events, std::int32_t device) : events_(events), device_(device) {}
    void observe(const TraceEvent& event) override { events_.add(device_, event); }

   private:
    EventBuffer& events_;
    std::int32_t device_;
  };

  EventBuffer events_;
  std::mutex draining_;
};

}  // namespace plimsoll::python
