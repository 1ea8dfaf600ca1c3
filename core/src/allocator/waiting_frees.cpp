#include "plimsoll/allocator/waiting_frees.h"

#include <iterator>
#include <set>

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {

void WaitingFrees::wait(Block* block, const std::vector<StreamId>& streams) {
  std::vector<std::pair<StreamId, Event>> recorded;
  for (const StreamId stream : streams) {
    Event event = 0;
    if (const Status status = driver_.record(stream, event); status != Status::success) {
      for (const auto& [other, made] : recorded) driver_.destroy(made);
      throw DriverError("record an event", status, driver_.last_error());
    }
    recorded.emplace_back(stream, event);
  }
  Free* const free = frees_.make_unset();
  *free = {block, recorded.size()};
  for (const auto& [stream, event] : recorded) pending_[stream].emplace_back(event, free);
}

void WaitingFrees::wait_for_deferred() {
  while (!deferred_.empty()) {
    Block* const block = deferred_.front();
    std::vector<StreamId> streams = block->stream_uses;
    for (const StreamId stream : block->capture_uses) std::erase(streams, stream);
    if (!streams.empty()) wait(block, streams);
    block->capture_uses.clear();
    deferred_.pop_front();
    if (streams.empty()) finish_(block);
  }
}

void WaitingFrees::pass(Event event, Free* free) {
  driver_.destroy(event);
  if (--free->events > 0) return;
  finish_(free->block);
  frees_.recycle(free);
}

void WaitingFrees::process_events() {
  wait_for_deferred();
  if (pending_.empty()) return;
  to_query_.clear();
  if (const std::set<StreamId>* const streams = driver_.streams_to_query()) {
    to_query_.assign(streams->begin(), streams->end());
  } else {
    for (const auto& [stream, queue] : pending_) to_query_.push_back(stream);
  }
  for (const StreamId stream : to_query_) process_events(stream);
}

void WaitingFrees::process_events(StreamId stream) {
  const auto place = pending_.find(stream);
  if (place == pending_.end()) return;
  auto& queue = place->second;
  while (!queue.empty()) {
    const auto [event, free] = queue.front();
    const Status status = driver_.query(event);
    if (status == Status::not_ready) return;
    if (status != Status::success) {
      throw DriverError("query an event", status, driver_.last_error());
    }
    queue.pop_front();
    pass(event, free);
  }
  pending_.erase(place);
}

void WaitingFrees::synchronize_events(const std::function<bool(const Block*)>& is_meant) {
  wait_for_deferred();
  for (auto stream = pending_.begin(); stream != pending_.end();) {
    auto& queue = stream->second;
    for (auto entry = queue.begin(); entry != queue.end();) {
      const auto [event, free] = *entry;
      if (!is_meant(free->block)) {
        ++entry;
        continue;
      }
      if (const Status status = driver_.synchronize(event); status != Status::success) {
        throw DriverError("wait for an event", status, driver_.last_error());
      }
      entry = queue.erase(entry);
      pass(event, free);
    }
    stream = queue.empty() ? pending_.erase(stream) : std::next(stream);
  }
}

}  // namespace plimsoll
