#include "plimsoll/replay/shadow.h"

#include <unistd.h>

#include <exception>
#include <span>

namespace plimsoll {
namespace {

bool is_the_programs(Action action) {
  return action == Action::alloc || action == Action::free_requested ||
         action == Action::free_completed || action == Action::oom;
}

}  // namespace

Shadow::Shadow(Bytes device_memory, const AllocatorConfig& config, TorchVersion version, int device,
               std::size_t batch)
    : driver_(host_, device_memory),
      allocator_(driver_, config, version, device),
      replayer_(allocator_, driver_, &allocator_, {}),
      batch_size_(batch),
      process_(getpid()) {
  filling_.events.reserve(batch_size_);
  replaying_.events.reserve(batch_size_);
  thread_ = std::thread([this] { run(); });
}

Shadow::~Shadow() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// --- the program's threads ---------------------------------------------------------------------

void Shadow::add(const TraceEvent& event) noexcept {
  if (!is_the_programs(event.action)) return;
  std::unique_lock lock(mutex_);
  while (filling_.events.size() == batch_size_) hand_over(lock);
  filling_.events.push_back(event);
}

void Shadow::apply(std::function<void(NativeAllocator&)> change) {
  std::unique_lock lock(mutex_);
  while (filling_.changes.size() == batch_size_) hand_over(lock);
  filling_.changes.emplace_back(filling_.events.size(), std::move(change));
}

ShadowResult Shadow::result() {
  std::unique_lock lock(mutex_);
  hand_over(lock);
  if (getpid() == process_) changed_.wait(lock, [this] { return !is_replaying_; });
  const Statistics& statistics = allocator_.statistics();
  return {events_,
          static_cast<Bytes>(statistics.reserved_bytes.all.peak),
          statistics.num_alloc_retries,
          statistics.num_ooms + statistics.num_oom_rejections,
          replayer_.first_oom_report(),
          stopped_};
}

void Shadow::hand_over(std::unique_lock<std::mutex>& lock) {
  if (getpid() != process_) {  // a forked child has no thread to replay the events
    filling_.events.clear();
    filling_.changes.clear();
    return;
  }
  changed_.wait(lock, [this] { return !is_replaying_; });
  std::swap(filling_, replaying_);
  is_replaying_ = true;
  changed_.notify_all();
}

// --- the shadow's own thread -------------------------------------------------------------------

void Shadow::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_replaying_ || is_ending_; });
    if (!is_replaying_) return;
    lock.unlock();
    try {
      replay(replaying_);
    } catch (const std::exception& error) {
      stopped_ = error.what();
    }
    replaying_.events.clear();
    replaying_.changes.clear();
    lock.lock();
    is_replaying_ = false;
    changed_.notify_all();
  }
}

void Shadow::replay(const Batch& batch) {
  auto change = batch.changes.begin();
  for (std::size_t i = 0; i <= batch.events.size(); ++i) {
    for (; change != batch.changes.end() && change->first == i; ++change) {
      if (!is_over()) {
        replayer_.finish();  // from here on, requests go to the default pool
        change->second(allocator_);
      }
    }
    if (i < batch.events.size() && !is_over()) take(batch.events[i]);
  }
}

// Passes an event to the replay. If the event shows that an earlier free has completed, passes that
// completion first. Ignores frees of unknown blocks.
void Shadow::take(const TraceEvent& event) {
  if (event.action == Action::oom) return feed(event);
  const State* const state = known_.find(event.address);
  switch (event.action) {
    case Action::alloc:
      if (event.size == 0) return;
      if (state != nullptr && *state == State::freed) {
        // The address is in use again, so the free has completed.
        TraceEvent completed = event;
        completed.action = Action::free_completed;
        take(completed);
      }
      feed(event);
      known_.insert(event.address, State::live);
      return;
    case Action::free_requested:
      if (state == nullptr || *state == State::freed) return;
      feed(event);
      known_.insert(event.address, State::freed);
      return;
    case Action::free_completed:
      if (state == nullptr) return;
      feed(event);
      known_.erase(event.address);
      return;
    default: return;
  }
}

void Shadow::feed(const TraceEvent& event) {
  const auto action = static_cast<std::uint8_t>(event.action);
  replayer_.feed({std::span(&action, 1), std::span(&event.address, 1), std::span(&event.size, 1),
                  std::span(&event.stream, 1), std::span(&event.pool.first, 1),
                  std::span(&event.pool.second, 1)});
  ++events_;
}

}  // namespace plimsoll
