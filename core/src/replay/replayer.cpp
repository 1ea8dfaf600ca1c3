#include "plimsoll/replay/replayer.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "plimsoll/replay/state_restorer.h"

namespace plimsoll {
namespace {

// Real stream handles are pointers; made-up ones lie above all of them.
constexpr StreamId kFirstMadeUpStream = StreamId{1} << 63;

// Under other rules segments have other sizes. What matters of their addresses is the order, in
// which best fit breaks ties; spaced out, they keep it.
constexpr int kSpacingBits = 4;

// More than any device has: a size beyond it is damage.
constexpr Bytes kMostBytes = Bytes{1} << 48;

// Whether the pool is a graph's own. Those of torch.cuda.MemPool and of graph_pool_handle() have
// names of the same kind; they are taken for MemPools, although a graph may use such a handle.
bool is_of_graph(PoolId pool) { return pool.first != 0; }

bool is_release(Action action) {
  return action == Action::segment_free || action == Action::segment_unmap;
}

}  // namespace

Replayer::Replayer(Allocator& allocator, SimulatedDriver& driver, NativeAllocator* native,
                   const ReplayOptions& options)
    : allocator_(allocator),
      driver_(driver),
      native_(native),
      tiers_(allocator, driver),
      options_(options),
      next_stream_(kFirstMadeUpStream) {
  allocator_.history().record_up_to(options.compare ? std::numeric_limits<std::size_t>::max() : 0);
}

void Replayer::restore(const std::vector<SegmentInfo>& segments) {
  const std::optional<Bytes> limit = allocator_.limit();
  allocator_.set_limit(std::nullopt);  // what was there, was there
  try {
    if (native_ != nullptr) {
      for (Block* const block : StateRestorer(*native_, driver_).restore(segments)) {
        keep(block->address, block);
      }
    } else {
      request_again(segments);
    }
  } catch (const std::invalid_argument& error) {
    throw ReplayError(std::string("the state at the start is impossible: ") + error.what());
  } catch (const OutOfMemory&) {
    throw ReplayError("the device has no memory for what was alive at the start");
  }
  allocator_.set_limit(limit);
  for (const SegmentInfo& segment : segments) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::active_pending_free) {
        wait_for_recording(take(block.address, 0), block.address);
      }
    }
    if (!segment.pool.is_default()) pool_uses_.emplace(segment.pool, 1);
  }
  note_peak();
  allocator_.history().clear();
}

// Other allocators than the recorded one lay out what was alive in their own way.
void Replayer::request_again(const std::vector<SegmentInfo>& segments) {
  for (const SegmentInfo& segment : segments) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::inactive) continue;
      const Bytes size = block.requested > 0 ? block.requested : block.size;
      keep(block.address, allocator_.malloc(size, segment.stream));
    }
  }
}

void Replayer::feed(const EventSpan& events, const std::function<void()>& poll) {
  constexpr std::size_t kEventsBetweenPolls = 1024;
  for (std::size_t i = 0; i < events.count() && !stopped_; ++i) {
    if (i % kEventsBetweenPolls == 0 && poll) poll();
    step(events[i]);
    if (!stopped_) ++index_;
  }
}

void Replayer::finish() {
  if (stopped_) return;
  if (free_) free_later(*std::exchange(free_, std::nullopt));
  end_run();
  use_pool({});
}

void Replayer::step(const TraceEvent& event) {
  if (free_) {
    const TraceEvent freed = *std::exchange(free_, std::nullopt);
    if (event.action == Action::free_completed && event.address == freed.address) {
      return free_now(freed);
    }
    free_later(freed);
  }
  switch (event.action) {
    case Action::alloc:
    case Action::oom: return request(event);
    case Action::free_requested:
      end_run();
      free_ = event;
      return;
    case Action::snapshot: return end_run();
    case Action::free_completed:
      if (!options_.compare) return complete(event);
      [[fallthrough]];
    case Action::segment_alloc:
    case Action::segment_free:
    case Action::segment_map:
    case Action::segment_unmap:
      if (run_.empty()) run_start_ = index_;
      run_.push_back(event);
      return;
  }
}

void Replayer::request(const TraceEvent& event) {
  if (event.size == 0 || event.size > kMostBytes) {
    throw ReplayError("event " + std::to_string(index_) + " asks for " +
                      std::to_string(event.size) + " bytes");
  }
  if (event.action == Action::alloc && live_.find(event.address) != nullptr) {
    throw ReplayError("event " + std::to_string(index_) + " allocates " +
                      format_address(event.address) + ", which is allocated already");
  }
  use_pool(event.pool);
  if (!run_.empty()) prepare_request(event);
  Block* block = nullptr;
  try {
    block = allocator_.malloc(event.size, event.stream);
  } catch (const OutOfMemory& error) {
    if (!first_oom_) {
      first_oom_ = index_;
      first_oom_report_ = error.report();
    }
  }
  if (options_.compare) {
    complete_run();
    check(&event);
  }
  run_.clear();
  driver_.forget_fed_addresses();
  if (event.action == Action::oom) {
    if (block == nullptr) return;
    ++avoided_ooms_;  // what the program would have done with it is not known
    allocator_.free(block);
    allocator_.history().clear();
  } else if (block == nullptr) {
    stopped_ = true;
  } else {
    keep(event.address, block);
  }
  note_peak();
}

// The program has it now, under its recorded address.
void Replayer::keep(Address address, Block* block) {
  live_.insert(address, block);
  tiers_.lent(*block);
}

void Replayer::note_peak() {
  const Statistics& now = allocator_.statistics();
  const auto reserved = static_cast<Bytes>(now.reserved_bytes.all.current);
  if (reserved <= peak_.reserved) return;
  peak_ = {index_,
           reserved,
           static_cast<Bytes>(now.active_bytes.all.current),
           static_cast<Bytes>(now.allocated_bytes.all.current),
           static_cast<Bytes>(now.requested_bytes.all.current),
           static_cast<Bytes>(now.inactive_split_bytes.all.current)};
}

Block* Replayer::take(Address address, std::uint64_t event) {
  Block* const* const block = live_.find(address);
  if (block == nullptr) {
    throw ReplayError("event " + std::to_string(event) + " frees " + format_address(address) +
                      ", which is not allocated");
  }
  Block* const found = *block;
  live_.erase(address);
  tiers_.returning(*found);
  return found;
}

void Replayer::free_now(const TraceEvent& event) {
  allocator_.free(take(event.address, index_ - 1));
  allocator_.history().clear();
}

// Another stream still used the block: it has work of unknown length, until the recording says that
// the free is done.
void Replayer::free_later(const TraceEvent& event) {
  had_pending_frees_ = true;
  Block* const block = take(event.address, index_ - 1);
  if (options_.completion == Completion::at_once) {
    allocator_.free(block);
  } else {
    wait_for_recording(block, event.address);
  }
  allocator_.history().clear();
}

void Replayer::wait_for_recording(Block* block, Address address) {
  StreamId stream = next_stream_;
  if (options_.completion == Completion::late) {
    // All wait for the same; the allocator then need not ask for each.
  } else if (idle_streams_.empty()) {
    ++next_stream_;
  } else {
    stream = idle_streams_.back();
    idle_streams_.pop_back();
  }
  use_pool({});  // the uses inside a capture are forgotten with its end
  driver_.hold(stream);
  allocator_.record_stream(block, stream);
  allocator_.free(block);
  waiting_.emplace(address, stream);
}

void Replayer::complete(const TraceEvent& event) {
  const auto waiting = waiting_.find(event.address);
  if (waiting == waiting_.end()) {
    if (options_.completion == Completion::at_once) return;
    throw ReplayError("event " + std::to_string(index_) + " completes a free of " +
                      format_address(event.address) + " that was never requested");
  }
  if (options_.completion == Completion::recorded) {
    driver_.finish(waiting->second);
    idle_streams_.push_back(waiting->second);
  }
  waiting_.erase(waiting);
}

void Replayer::use_pool(PoolId pool) {
  if (pool == pool_) return;
  if (!pool_.is_default()) allocator_.end_allocate_to_pool(pool_);
  if (is_of_graph(pool_)) allocator_.end_graph_capture();
  pool_ = pool;
  if (pool.is_default()) return;
  allocator_.begin_allocate_to_pool(pool, {});
  if (is_of_graph(pool)) allocator_.begin_graph_capture();
  ++pool_uses_[pool];
}

// Whether the allocator takes requests to this pool for those of a capture.
bool Replayer::is_capturing(PoolId pool) const {
  if (pool.is_default()) return false;
  const bool tells = native_ != nullptr && native_->version().tells_captures_from_pools();
  return !tells || is_of_graph(pool);
}

// Cached memory went back to the driver before this request: by the allocator, as part of serving
// it, or because the program emptied the cache first?
Replayer::Release Replayer::release_before(const TraceEvent& event) {
  const auto released_any = [&](auto matches) {
    return std::any_of(run_.begin(), run_.end(), [&](const TraceEvent& entry) {
      return is_release(entry.action) && matches(entry);
    });
  };
  if (!released_any([](const TraceEvent&) { return true; })) return Release::none;
  if (options_.emptied != nullptr) {
    const auto& emptied = *options_.emptied;
    while (next_emptied_ < emptied.size() && emptied[next_emptied_] < run_start_) ++next_emptied_;
    const bool asked = next_emptied_ < emptied.size() && emptied[next_emptied_] == run_start_;
    return asked ? Release::emptied : Release::refused;
  }
  if (native_ == nullptr) return Release::refused;
  // Only large segments of the default pool are ever collected.
  const auto may_be_garbage = [&](const TraceEvent& entry) {
    return native_->config().garbage_collection_threshold > 0 && entry.pool.is_default() &&
           entry.action == Action::segment_free && entry.size != AllocatorConfig::kSmallSegment;
  };
  switch (native_->outlook(event.size, event.stream)) {
    case NativeAllocator::Outlook::refused:
      // Inside a capture, no cached memory goes back but the pool's own.
      if (!is_capturing(event.pool) || !released_any([&](const TraceEvent& entry) {
            return entry.pool != event.pool && !may_be_garbage(entry);
          })) {
        return Release::refused;
      }
      break;
    case NativeAllocator::Outlook::collects:
      if (!released_any([&](const TraceEvent& entry) { return !may_be_garbage(entry); })) {
        return Release::collected;
      }
      break;
    case NativeAllocator::Outlook::rejected:
    case NativeAllocator::Outlook::grows:
    case NativeAllocator::Outlook::cached: break;
  }
  return Release::emptied;
}

void Replayer::prepare_request(const TraceEvent& event) {
  Release release = release_before(event);
  // A refused request waits for all streams by itself, but too late for a block that it could use;
  // inside a capture, none does.
  const bool refused = release == Release::refused || event.action == Action::oom;
  const bool waits = refused && !is_capturing(event.pool) && !releases_only_oversize();
  if (options_.compare && !waits) {
    use_pool({});
    complete_run();
    use_pool(event.pool);
    if (!refused) release = release_before(event);  // what is free by now may be garbage
  }
  release == Release::emptied ? empty_cache() : release_emptied_pools();
  use_pool(event.pool);
  for (const TraceEvent& entry : run_) {
    if (entry.action == Action::segment_alloc) feed_address(entry, event.size);
    // Another allocator than PyTorch's has its own reservations, which must not overlap.
    if (entry.action == Action::segment_map && native_ != nullptr) {
      driver_.feed_reservation(entry.address);
    }
  }
}

// To return blocks of max_split_size or more, the allocator waits for nothing.
bool Replayer::releases_only_oversize() const {
  if (native_ == nullptr) return false;
  bool releases = false;
  for (const TraceEvent& entry : run_) {
    if (!is_release(entry.action)) continue;
    releases = true;
    if (entry.size < native_->config().max_split_size) return false;
  }
  return releases;
}

void Replayer::feed_address(const TraceEvent& segment, Bytes request) {
  if (options_.compare) return driver_.feed_allocation(segment.address, segment.size);
  if (native_ == nullptr) return;
  const AllocatorConfig& config = native_->config();
  const Bytes size = config.segment_size(config.round_request(request));
  driver_.feed_allocation(segment.address << kSpacingBits, size);
}

// Completes the frees of the run in the recorded order, but for those that are complete already.
void Replayer::complete_run() {
  for (const TraceEvent& entry : run_) {
    if (entry.action != Action::free_completed || !waiting_.contains(entry.address)) continue;
    complete(entry);
    allocator_.poll();
  }
}

void Replayer::empty_cache() {
  emptied_.push_back(run_start_);
  std::optional<PoolId> only;  // the one pool that was emptied
  bool several = false;
  for (const TraceEvent& entry : run_) {
    if (!is_release(entry.action)) continue;
    several = several || (only && *only != entry.pool);
    only = entry.pool;
  }
  use_pool({});
  release_emptied_pools();
  allocator_.empty_cache(several || !only ? PoolId{} : *only);
}

// A pool in use is never emptied, but for oversize blocks that a request to it needs. So the graphs
// and MemPools of those that were are gone.
void Replayer::release_emptied_pools() {
  for (const TraceEvent& entry : run_) {
    if (!is_release(entry.action) || entry.pool == pool_) continue;
    const auto uses = pool_uses_.find(entry.pool);
    if (uses == pool_uses_.end()) continue;
    for (int& left = uses->second; left > 0; --left) allocator_.release_pool(entry.pool);
  }
}

// The program did something else than ask for memory: what the allocator did, it was told to do.
void Replayer::end_run() {
  if (run_.empty()) return;
  // A history that was cut between a free and its completion begins with the latter.
  const bool is_cut =
      run_start_ == 0 && run_.size() == 1 && run_.front().action == Action::free_completed;
  if (!is_cut) empty_cache();
  if (options_.compare) {
    complete_run();
    check(nullptr);
  }
  run_.clear();
}

// Compares what the allocator did with the recorded run and the request that ended it. The order in
// which frees of several streams complete is left open, as PyTorch leaves it.
void Replayer::check(const TraceEvent* request) {
  History& history = allocator_.history();
  std::size_t done = 0;
  const auto next_replayed = [&]() -> const TraceEvent* {
    while (done < history.size() && history[done].action == Action::free_completed) ++done;
    return done < history.size() ? &history[done++] : nullptr;
  };
  const auto compare = [&](const TraceEvent& recorded, std::uint64_t event) {
    const TraceEvent* const replayed = next_replayed();
    const bool same = replayed != nullptr && replayed->action == recorded.action &&
                      replayed->size == recorded.size &&
                      (replayed->address == recorded.address || recorded.action == Action::oom);
    if (!same) {
      differ(event, recorded, replayed ? std::optional(*replayed) : std::nullopt);
    }
  };
  std::uint64_t event = run_start_;
  for (const TraceEvent& recorded : run_) {
    if (recorded.action != Action::free_completed) compare(recorded, event);
    ++event;
  }
  if (request != nullptr) compare(*request, index_);
  if (const TraceEvent* const more = next_replayed()) differ(index_, std::nullopt, *more);
  history.clear();
}

void Replayer::differ(std::uint64_t event, std::optional<TraceEvent> recorded,
                      std::optional<TraceEvent> replayed) {
  if (!difference_) difference_ = Difference{event, std::move(recorded), std::move(replayed)};
}

}  // namespace plimsoll
