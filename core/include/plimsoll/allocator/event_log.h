// Who is told of what an allocator does: its history, and an observer.
#pragma once

#include <atomic>
#include <cstdint>

#include "plimsoll/driver/driver.h"
#include "plimsoll/events/history.h"

namespace plimsoll {

// Somebody who is told of every event as it happens.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void observe(const TraceEvent& event) = 0;
};

class EventLog {
 public:
  // The driver tells the time, and where it spills, what of a lent block it put into shared memory.
  explicit EventLog(Driver& driver) : driver_(driver) {}

  [[nodiscard]] History& history() { return history_; }
  [[nodiscard]] const History& history() const { return history_; }
  // Null: nobody. The observer outlives the log: another thread may be about to call one that was
  // replaced.
  void set_observer(Observer* observer) { observer_.store(observer, std::memory_order_release); }

  // The caller's number for the call stack of what follows; stored with blocks and events.
  void set_context(std::uint32_t context) { context_ = context; }
  [[nodiscard]] std::uint32_t context() const { return context_; }

  // Whether anybody wants to know of events.
  [[nodiscard]] bool is_noting() const {
    return observer_.load(std::memory_order_acquire) != nullptr || history_.is_recording();
  }
  // `context` is used where the caller gave none for this call; `shared` of `size` bytes are in
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
