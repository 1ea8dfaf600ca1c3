#include "plimsoll/simulated/streams.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

void Streams::launch(StreamId stream, double duration_ns) {
  Stream& state = streams_[stream];
  state.busy_until_ns = std::max(state.busy_until_ns, host_.now_ns()) + duration_ns;
}

void Streams::finish(StreamId stream) {
  Stream& state = streams_[stream];
  state.held = false;
  ++state.finishes;
  if (state.blocked_events == 0) return;
  state.open_events += std::exchange(state.blocked_events, 0);
  with_open_events_.insert(stream);
}

double Streams::done_at_ns(StreamId stream) const {
  const auto place = streams_.find(stream);
  return place == streams_.end() ? host_.now_ns()
                                 : std::max(host_.now_ns(), place->second.busy_until_ns);
}

StreamPoint Streams::point_of(StreamId stream) {
  const Stream& state = streams_[stream];
  return {stream, state.busy_until_ns, state.held, state.finishes};
}

bool Streams::is_complete(const StreamPoint& point) const {
  return !is_blocked(point) && host_.now_ns() >= point.completes_at_ns;
}

// Returns whether the stream was held at that point and has not been finished since.
bool Streams::is_blocked(const StreamPoint& point) const {
  return point.held && streams_.at(point.stream).finishes == point.finishes;
}

Event Streams::record(StreamId stream) {
  const Event event = next_event_++;
  const StreamPoint& point = events_.emplace(event, point_of(stream)).first->second;
  Stream& state = streams_.at(stream);
  if (point.held) {
    ++state.blocked_events;
  } else if (++state.open_events == 1) {
    with_open_events_.insert(stream);
  }
  return event;
}

Status Streams::query(Event event) const {
  const auto place = events_.find(event);
  if (place == events_.end()) return Status::invalid_value;
  return is_complete(place->second) ? Status::success : Status::not_ready;
}

Status Streams::destroy(Event event) {
  const auto place = events_.find(event);
  if (place == events_.end()) return Status::invalid_value;
  const StreamPoint& point = place->second;
  Stream& state = streams_.at(point.stream);
  if (is_blocked(point)) {
    --state.blocked_events;
  } else if (--state.open_events == 0) {
    with_open_events_.erase(point.stream);
  }
  events_.erase(place);
  return Status::success;
}

Status Streams::wait(StreamId stream, Event event) {
  const auto place = events_.find(event);
  if (place == events_.end()) return Status::invalid_value;
  const StreamPoint& point = place->second;
  if (is_complete(point)) return Status::success;
  Stream& state = streams_[stream];
  if (point.held) state.held = true;
  state.busy_until_ns = std::max(state.busy_until_ns, point.completes_at_ns);
  return Status::success;
}

Status Streams::synchronize(Event event) {
  const auto place = events_.find(event);
  if (place == events_.end()) return Status::invalid_value;
  const StreamPoint& point = place->second;
  if (point.held && !is_complete(point)) finish(point.stream);
  host_.advance_to(point.completes_at_ns);
  return Status::success;
}

void Streams::synchronize_stream(StreamId stream) {
  const auto state = streams_.find(stream);
  if (state == streams_.end()) return;
  host_.advance_to(state->second.busy_until_ns);
  if (state->second.held) finish(stream);
}

void Streams::synchronize_all() {
  for (const auto& [id, stream] : streams_) {
    if (stream.held) finish(id);
  }
  synchronize_work();
}

void Streams::synchronize_work() {
  for (const auto& [id, stream] : streams_) {
    if (!stream.held) host_.advance_to(stream.busy_until_ns);
  }
}

}  // namespace plimsoll
