#include "plimsoll/replay/replayer.h"

#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "plimsoll/replay/state_restorer.h"

namespace plimsoll {
namespace {

// Under other settings, segments may be larger than the recorded ones. So the recorded addresses
// are shifted left by this many bits, which makes room between the segments. The order of the
// addresses stays the same. Only the order matters: best fit uses it to choose between free blocks
// of equal size.
constexpr int kSpacingBits = 4;

// More memory than any device has: a larger size means a damaged file.
constexpr Bytes kMostBytes = Bytes{1} << 48;

// Requests the initially live blocks again, so that an allocator other than the recorded one places
// them by its own rules.
void request_again(const std::vector<SegmentInfo>& segments, Allocator& allocator,
                   RecordedBlocks& blocks) {
  for (const SegmentInfo& segment : segments) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::inactive) continue;
      const Bytes size = block.requested > 0 ? block.requested : block.size;
      blocks.keep(block.address, allocator.malloc(size, segment.stream));
    }
  }
}

}  // namespace

void PeakState::look(std::uint64_t at, const Statistics& now) {
  const auto reserved_now = static_cast<Bytes>(now.reserved_bytes.all.current);
  const auto active_now = static_cast<Bytes>(now.active_bytes.all.current);
  if (std::tie(reserved_now, active_now) <= std::tie(reserved, active)) return;
  *this = {at,
           reserved_now,
           active_now,
           static_cast<Bytes>(now.allocated_bytes.all.current),
           static_cast<Bytes>(now.requested_bytes.all.current),
           static_cast<Bytes>(now.inactive_split_bytes.all.current)};
}

Replayer::Replayer(Allocator& allocator, SimulatedDriver& driver, NativeAllocator* native,
                   const ReplayOptions& options)
    : allocator_(allocator),
      driver_(driver),
      native_(native),
      tiers_(allocator, driver),
      options_(options),
      run_(options.recorded),
      blocks_(allocator, driver, tiers_, options.completion),
      pools_(allocator, native != nullptr && native->version().tells_captures_from_pools()),
      emptied_(options.emptied) {
  allocator_.history().record_up_to(options.compare ? std::numeric_limits<std::size_t>::max() : 0);
}

void Replayer::restore(const std::vector<SegmentInfo>& segments) {
  const std::optional<Bytes> limit = allocator_.limit();
  allocator_.set_limit(std::nullopt);  // the recorded blocks existed, whatever the limit
  try {
    if (native_ != nullptr && options_.recorded == RecordedAllocator::native) {
      for (Block* const block : StateRestorer(*native_, driver_).restore(segments)) {
        blocks_.keep(block->address, block);
      }
    } else {
      request_again(segments, allocator_, blocks_);
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
        blocks_.wait(block.address, 0);
      }
    }
    if (!segment.pool.is_default()) pools_.add(segment.pool);
  }
  peak_.look(index_, allocator_.statistics());
  allocator_.history().clear();
}

void Replayer::feed(const EventSpan& events, const std::function<void()>& poll) {
  constexpr std::size_t kEventsBetweenPolls = 1024;
  for (std::size_t i = 0; i < events.count() && !stopped(); ++i) {
    if (i % kEventsBetweenPolls == 0 && poll) poll();
    step(events[i]);
    if (!stopped()) ++index_;
  }
}

void Replayer::finish() {
  if (stopped()) return;
  if (free_) free_later(*std::exchange(free_, std::nullopt));
  end_run();
  pools_.use({});
}

void Replayer::step(const TraceEvent& event) {
  if (free_) {
    const TraceEvent freed = *std::exchange(free_, std::nullopt);
    if (event.action == Action::free_completed && event.address == freed.address) {
      blocks_.free_now(freed.address, index_ - 1);
      allocator_.history().clear();
      return;
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
      if (!options_.compare) return blocks_.complete(event.address, index_);
      [[fallthrough]];
    case Action::segment_alloc:
    case Action::segment_free:
    case Action::segment_map:
    case Action::segment_unmap: run_.add(event, index_); return;
  }
}

void Replayer::request(const TraceEvent& event) {
  if (event.size == 0 || event.size > kMostBytes) {
    throw ReplayError("event " + std::to_string(index_) + " asks for " +
                      std::to_string(event.size) + " bytes");
  }
  if (event.action == Action::alloc && blocks_.contains(event.address)) {
    throw ReplayError("event " + std::to_string(index_) + " allocates " +
                      format_address(event.address) + ", which is allocated already");
  }
  pools_.use(event.pool);
  if (!run_.is_empty()) prepare_request(event);
  Block* block = nullptr;
  try {
    block = allocator_.malloc(event.size, event.stream);
  } catch (const OutOfMemory& error) {
    if (!failures_.first) {
      failures_.first = index_;
      failures_.report = error.report();
    }
  }
  if (options_.compare) {
    complete_run();
    compare(&event);
  }
  run_.clear();
  driver_.forget_fed_addresses();
  if (event.action == Action::oom) {
    if (block == nullptr) return;
    ++failures_.avoided;
    allocator_.free(block);  // the recording cannot show how long the block would have lived
    allocator_.history().clear();
  } else if (block == nullptr) {
    failures_.ended_program = true;
  } else {
    blocks_.keep(event.address, block);
  }
  peak_.look(index_, allocator_.statistics());
}

// Frees a block that another stream still uses. The replay uses a made-up stream, which has work
// until the recording says that the free is complete.
void Replayer::free_later(const TraceEvent& event) {
  if (options_.completion != Completion::at_once) pools_.use({});
  blocks_.free_later(event.address, index_ - 1);
  allocator_.history().clear();
}

// Decides why cached memory went back to the driver before this request: the allocator released it
// to serve the request, or the program emptied the cache first.
Replayer::Release Replayer::release_before(const TraceEvent& event) {
  if (!run_.released_any()) return Release::none;
  if (emptied_.is_known()) {
    return emptied_.has(run_.start()) ? Release::emptied : Release::refused;
  }
  if (native_ == nullptr) return Release::refused;
  // Garbage collection releases only large segments, and only those of the default pool.
  const auto may_be_garbage = [&](const TraceEvent& entry) {
    return native_->config().garbage_collection_threshold > 0 && entry.pool.is_default() &&
           entry.action == Action::segment_free && entry.size != AllocatorConfig::kSmallSegment;
  };
  switch (native_->outlook(event.size, event.stream)) {
    case NativeAllocator::Outlook::refused:
      // During a capture, a refused request releases cached memory of the capture's own pool only.
      // So if memory of another pool was released, the program released it.
      if (!pools_.is_capturing(event.pool) || !run_.released_any([&](const TraceEvent& entry) {
            return entry.pool != event.pool && !may_be_garbage(entry);
          })) {
        return Release::refused;
      }
      break;
    case NativeAllocator::Outlook::collects:
      if (!run_.released_any([&](const TraceEvent& entry) { return !may_be_garbage(entry); })) {
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
  const bool refused = release == Release::refused || event.action == Action::oom;
  if (options_.compare && !(refused && waits_for_streams(event))) {
    pools_.use({});
    complete_run();
    pools_.use(event.pool);
    // `complete_run` may have completed frees. Then the release may have another reason: look
    // again.
    if (!refused) release = release_before(event);
  }
  if (release == Release::emptied) {
    empty_cache();
  } else {
    run_.for_each_release([&](const TraceEvent& entry) { pools_.note_emptied(entry.pool); });
  }
  pools_.use(event.pool);
  feed_addresses(event.size);
}

// Returns whether the allocator waits for all streams before it refuses the request. Frees that
// complete during this wait come too late for the request, because the allocator has already
// searched the free blocks. The allocator does not wait inside a capture. It also does not wait if
// it has released blocks and all of them had at least max_split_size bytes.
bool Replayer::waits_for_streams(const TraceEvent& request) const {
  if (pools_.is_capturing(request.pool)) return false;
  if (native_ == nullptr || !run_.released_any()) return true;
  return run_.released_any(
      [this](const TraceEvent& entry) { return entry.size < native_->config().max_split_size; });
}

// Tells the driver where to place the segments that the replayed request needs: at the addresses of
// the recorded request's new segments, or at multiples of these addresses.
void Replayer::feed_addresses(Bytes request) {
  for (const TraceEvent& entry : run_.events()) {
    // Only a replay by PyTorch's allocator reserves at the recorded addresses. Another allocator
    // reserves ranges of other sizes, and they could overlap each other at the recorded addresses.
    if (entry.action == Action::segment_map && native_ != nullptr) {
      driver_.feed_reservation(entry.address);
    }
    if (entry.action != Action::segment_alloc) continue;
    if (options_.compare) {
      driver_.feed_allocation(entry.address, entry.size);
    } else if (native_ != nullptr) {
      const AllocatorConfig& config = native_->config();
      driver_.feed_allocation(entry.address << kSpacingBits,
                              config.segment_size(config.round_request(request)));
    }
  }
}

// The recording shows which frees were completed since the last request. Completes those that are
// still pending, in the recorded order.
void Replayer::complete_run() {
  for (const TraceEvent& entry : run_.events()) {
    if (entry.action != Action::free_completed || !blocks_.is_waiting(entry.address)) continue;
    blocks_.complete(entry.address, index_);
    allocator_.poll();
  }
}

void Replayer::empty_cache() {
  emptied_.add(run_.start());
  pools_.use({});
  run_.for_each_release([&](const TraceEvent& entry) { pools_.note_emptied(entry.pool); });
  allocator_.empty_cache(run_.emptied_pool().value_or(PoolId{}));
}

// Handles the recorded allocator's events in `run_` at a free, at a snapshot and at the end of the
// recording. At a request, `prepare_request` handles these events.
void Replayer::end_run() {
  if (run_.is_empty()) return;
  if (run_.was_told()) empty_cache();
  if (options_.compare) {
    complete_run();
    compare(nullptr);
  }
  run_.clear();
}

void Replayer::compare(const TraceEvent* request) {
  History& history = allocator_.history();
  run_.compare(request, index_, history, difference_);
  history.clear();
}

}  // namespace plimsoll
