// Streams and events on the machine's clock. GPU work is a duration queued on a stream, so an event
// is complete once the clock has passed the end of the work queued before it. A stream can also be
// held: it then has work of unknown length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/host.h"

namespace plimsoll {

// The end of a stream's queue at some moment, for example when an event was recorded.
struct StreamPoint {
  StreamId stream = 0;
  double completes_at_ns = 0;  // when all work that was in the queue will be done
  bool held = false;           // whether the stream was held
  std::uint64_t finishes = 0;  // how often `finish` had been called for the stream
};

class Streams {
 public:
  // Takes a `host` that outlives this object.
  explicit Streams(SimulatedHost& host) : host_(host) {}

  // Queues work of `duration_ns`; the host does not wait.
  void launch(StreamId stream, double duration_ns);
  // Queues work of unknown length: the stream stays busy until `finish`, or until the host waits
  // for it.
  void hold(StreamId stream) { streams_[stream].held = true; }
  void finish(StreamId stream);
  // Returns the time at which all work queued on a stream so far will be done.
  [[nodiscard]] double done_at_ns(StreamId stream) const;
  // Returns the current end of a stream's queue.
  [[nodiscard]] StreamPoint point_of(StreamId stream);
  [[nodiscard]] bool is_complete(const StreamPoint& point) const;

  Event record(StreamId stream);
  [[nodiscard]] Status query(Event event) const;
  Status destroy(Event event);
  // Makes all work queued on `stream` from now on wait for the event.
  Status wait(StreamId stream, Event event);
  [[nodiscard]] std::size_t events() const { return events_.size(); }
  // Returns the streams that have at least one open event (see `Stream::open_events`).
  [[nodiscard]] const std::set<StreamId>& with_open_events() const { return with_open_events_; }

  // Makes the host wait for an event, a stream, all streams, or all streams that are not held.
  Status synchronize(Event event);
  void synchronize_stream(StreamId stream);
  void synchronize_all();
  void synchronize_work();

 private:
  struct Stream {
    double busy_until_ns = 0;
    bool held = false;
    std::uint64_t finishes = 0;
    // How many blocked and how many open events exist. A blocked event was recorded during a `hold`
    // and needs a `finish` to complete. An open event is complete, or completes as time passes.
    std::uint64_t blocked_events = 0;
    std::uint64_t open_events = 0;
  };

  [[nodiscard]] bool is_blocked(const StreamPoint& point) const;

  SimulatedHost& host_;
  std::unordered_map<StreamId, Stream> streams_;
  std::unordered_map<Event, StreamPoint> events_;
  std::set<StreamId> with_open_events_;
  Event next_event_ = 1;
};

}  // namespace plimsoll
