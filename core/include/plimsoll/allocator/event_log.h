// Sends an allocator's events to its history and to an observer.
#pragma once

#include <atomic>
#include <cstdint>

#include "plimsoll/driver/driver.h"
#include "plimsoll/events/history.h"

namespace plimsoll {

// Receives every event as it happens.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void observe(const TraceEvent& event) = 0;
};

class EventLog {
 public:
  // Takes the driver that gives each event its time. A driver that puts blocks into shared memory
  // by itself (`Driver::spills`) also says how much of a block lies there.
  explicit EventLog(Driver& driver) : driver_(driver) {}

  [[nodiscard]] History& history() { return history_; }
  [[nodiscard]] const History& history() const { return history_; }
  // Sets the observer; null removes it. The caller keeps each observer alive as long as the log,
  // because another thread may still call an observer that was replaced.
  void set_observer(Observer* observer) { observer_.store(observer, std::memory_order_release); }

  // Sets the caller's number for the current call stack. Later blocks and events store it.
  void set_context(std::uint32_t context) { context_ = context; }
  [[nodiscard]] std::uint32_t context() const { return context_; }

  // Returns whether the observer or the history takes events.
  [[nodiscard]] bool is_noting() const {
    return observer_.load(std::memory_order_acquire) != nullptr || history_.is_recording();
  }
  // Notes an event. `context` is the number of the event's call stack. It is used only if
  // `set_context` has set no number. `shared` says how many of the `size` bytes lie in
  // shared memory.
  void note(Action action, Address address, Bytes size, StreamId stream, PoolId pool = {},
            std::uint32_t context = 0, Bytes shared = 0) {
    if (is_noting()) tell(action, address, size, stream, pool, context, shared);
  }

 private:
  void tell(Action action, Address address, Bytes size, StreamId stream, PoolId pool,
            std::uint32_t context, Bytes shared);

  Driver& driver_;
  History history_;
  std::atomic<Observer*> observer_{nullptr};
  std::uint32_t context_ = 0;
};

}  // namespace plimsoll
