// The allocator's reports to PyTorch: statistics, snapshots, history.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "allocator.h"

namespace plimsoll::live {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

void add(Stat& to, const Stat& from) {
  to.current += from.current;
  to.peak += from.peak;
  to.allocated += from.allocated;
  to.freed += from.freed;
}

void add(StatArray& to, const StatArray& from) {
  for (size_t i = 0; i < to.size(); ++i) add(to[i], from[i]);
}

void add(Stat& to, const plimsoll_stat& from) {
  add(to, Stat{from.current, from.peak, from.allocated, from.freed});
}

void add(StatArray& to, const plimsoll_pool_stat& from) {
  add(to[static_cast<size_t>(StatType::AGGREGATE)], from.all);
  add(to[static_cast<size_t>(StatType::SMALL_POOL)], from.small_pool);
  add(to[static_cast<size_t>(StatType::LARGE_POOL)], from.large_pool);
}

// Adds the counters of an engine, or those of PyTorch's own allocator, to `to`. The two types of
// statistics have the same names for the counters.
template <typename Statistics>
void add_all(DeviceStats& to, const Statistics& from) {
  add(to.allocation, from.allocation);
  add(to.segment, from.segment);
  add(to.active, from.active);
  add(to.inactive_split, from.inactive_split);
  add(to.allocated_bytes, from.allocated_bytes);
  add(to.reserved_bytes, from.reserved_bytes);
  add(to.active_bytes, from.active_bytes);
  add(to.inactive_split_bytes, from.inactive_split_bytes);
  add(to.requested_bytes, from.requested_bytes);
  add(to.oversize_allocations, from.oversize_allocations);
  add(to.oversize_segments, from.oversize_segments);
  to.num_alloc_retries += from.num_alloc_retries;
  to.num_ooms += from.num_ooms;
  to.num_sync_all_streams += from.num_sync_all_streams;
  to.num_device_alloc += from.num_device_alloc;
  to.num_device_free += from.num_device_free;
}

}  // namespace

DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  DeviceStats result;
  if (plimsoll_engine* engine = device(index).engine_if_open()) {
    plimsoll_statistics statistics{};
    api->statistics(engine, &statistics);
    add_all(result, statistics);
    result.max_split_size = statistics.max_split_size;
    set_rejections(result, statistics.num_oom_rejections);
  }
  // With custom pools, each peak in the result is the engine's peak plus that of PyTorch's own
  // allocator. The two may have reached their peaks at different times, so the sum is an upper
  // bound.
  if (custom_pools_.any()) {
    add_all(result, original_->getDeviceStats(index));
  }
  return result;
}

void Allocator::resetAccumulatedStats(DeviceIndex index) {
  if (plimsoll_engine* engine = device(index).engine_if_open()) {
    api->reset_accumulated_statistics(engine);
  }
  original_->resetAccumulatedStats(index);
}

void Allocator::resetPeakStats(DeviceIndex index) {
  if (plimsoll_engine* engine = device(index).engine_if_open()) api->reset_peak_statistics(engine);
  original_->resetPeakStats(index);
}

double Allocator::getMemoryFraction(DeviceIndex index) { return device(index).fraction(); }

void Allocator::setMemoryFraction(double fraction, DeviceIndex index) {
  device(index).set_fraction(fraction);
}

void Allocator::emptyCache(MempoolId_t pool) {
  const History::Call call(history_, RecordContext::ALL);
  for (int i = 0; i < device_count_; ++i) {
    plimsoll_engine* engine = devices_[static_cast<size_t>(i)].engine_if_open();
    if (engine == nullptr) continue;
    int uses = 0;
    const bool is_here = pool == MempoolId_t{} ||
                         api->pool_uses(engine, engine_pool(pool), &uses) == PLIMSOLL_SUCCESS;
    if (is_here) check(api->empty_cache(engine, engine_pool(pool)));
  }
  if (custom_pools_.any()) original_->emptyCache(pool);
}

void Allocator::cacheInfo(DeviceIndex index, size_t* largest) {
  if (*largest == 0) {  // like PyTorch, begin with the GPU's free memory
    const c10::cuda::CUDAGuard guard(index);
    size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  if (plimsoll_engine* engine = device(index).engine_if_open()) {
    *largest = std::max<size_t>(*largest, api->largest_free_block(engine));
  }
}

// Returns all segments of a device, or only those of one pool, by address.
std::vector<SegmentInfo> Allocator::segments(Device& device, MempoolId_t pool) {
  struct Search {
    const History* history;
    DeviceIndex device;
    MempoolId_t pool;
    std::vector<SegmentInfo> found;
    std::vector<uint64_t> numbers;  // plimsoll_segment::number of each segment in `found`
  } search{&history_, device.index(), pool, {}, {}};
  plimsoll_engine* engine = device.engine_if_open();
  if (engine == nullptr) return {};
  check(api->segments(
      engine,
      [](void* data, const plimsoll_segment* from) {
        auto& [history, index, wanted, found, numbers] = *static_cast<Search*>(data);
        if (wanted != MempoolId_t{} && torch_pool(from->pool) != wanted) return;
        SegmentInfo segment;
        segment.device = index;
        segment.address = from->address;
        segment.total_size = from->total_size;
        segment.stream = static_cast<cudaStream_t>(as_pointer(from->stream));
        segment.is_large = from->is_small == 0;
        segment.is_expandable = from->is_expandable != 0;
        segment.owner_private_pool_id = torch_pool(from->pool);
        segment.context_when_allocated = history->segment_context(index, from->address);
        for (uint64_t i = 0; i < from->block_count; ++i) {
          const auto& part = from->blocks[i];
          BlockInfo block;
          block.size = part.size;
          block.requested_size = part.requested;
          block.allocated = part.state == PLIMSOLL_ACTIVE_ALLOCATED;
          block.active = part.state != PLIMSOLL_INACTIVE;
          block.context_when_allocated = history->block_context(index, part.address);
          if (block.allocated) segment.allocated_size += part.size;
          if (block.active) {
            segment.active_size += part.size;
            segment.requested_size += part.requested;
          }
          segment.blocks.push_back(std::move(block));
        }
        found.push_back(std::move(segment));
        numbers.push_back(from->number);
      },
      &search));
  set_registrations(search.found, search.numbers);
  return std::move(search.found);
}

SnapshotInfo Allocator::take_snapshot(MempoolId_t pool, bool includes_traces) {
  SnapshotInfo result;
  if (includes_traces) result.external_annotations = history_.annotations();
  for (int i = 0; i < device_count_; ++i) {
    auto& device = devices_[static_cast<size_t>(i)];
    if (includes_traces) result.device_traces.push_back(history_.entries(device.index()));
    size_t active_bytes = 0;
    for (auto& segment : segments(device, pool)) {
      active_bytes += segment.active_size;
      result.segments.push_back(std::move(segment));
    }
    history_.add_snapshot_event(device.index(), pool, active_bytes);
  }
  add_original(result, pool, includes_traces);
  return result;
}

// Adds to a snapshot the part that only PyTorch's own allocator knows: its settings, and the memory
// of custom pools.
void Allocator::add_original(SnapshotInfo& snapshot, MempoolId_t pool, bool includes_traces) const {
  SnapshotInfo theirs = original_.snapshot(pool);
  snapshot.config_metadata = std::move(theirs.config_metadata);
  if (!custom_pools_.any()) return;
  std::move(theirs.segments.begin(), theirs.segments.end(), std::back_inserter(snapshot.segments));
  if (!includes_traces) return;
  for (size_t i = 0; i < std::min(snapshot.device_traces.size(), theirs.device_traces.size());
       ++i) {
    auto& trace = snapshot.device_traces[i];
    for (auto& entry : theirs.device_traces[i]) {
      if (entry.action_ != TraceEntry::SNAPSHOT) trace.push_back(std::move(entry));
    }
    std::stable_sort(trace.begin(), trace.end(), [](const TraceEntry& a, const TraceEntry& b) {
      return a.time_.t_ < b.time_.t_;
    });
  }
}

std::vector<torch_allocator::SegmentInfo> Allocator::expandable_segments(DeviceIndex index) {
  auto result = segments(device(index), {});
  std::erase_if(result, [](const SegmentInfo& segment) { return !segment.is_expandable; });
  return result;
}

Context Allocator::context_of(const void* pointer) {
  plimsoll_place place{};
  const Device* device = owner(pointer, &place);
  return device == nullptr ? nullptr : history_.block_context(device->index(), place.block);
}

void Allocator::note_of_memory(const void* pointer, const std::string& text) {
  if (!history_.is_enabled()) return;
  plimsoll_place place{};
  Device* device = owner(pointer, &place);
  if (device == nullptr) return original_.note_of_memory(pointer, text);
  plimsoll_event block{};
  block.address = place.block;
  block.stream = place.stream;
  block.pool = place.pool;
  for (const auto& segment : segments(*device, torch_pool(place.pool))) {
    uint64_t address = segment.address;
    for (const auto& part : segment.blocks) {
      if (address == place.block) block.size = part.requested_size;
      address += part.size;
    }
  }
  const History::Call call(history_, RecordContext::ALLOC);
  history_.add_note(device->index(), block, text);
}

void Allocator::record(const HistoryRequest& request) {
  history_.record(request);
  original_.record(request);
  watch();
}

void Allocator::attachAllocatorTraceTracker(Tracker tracker) {
  history_.track(tracker);
  // plimsoll and PyTorch's own allocator both report each snapshot. The report of PyTorch's
  // allocator is dropped.
  original_->attachAllocatorTraceTracker([tracker = std::move(tracker)](const TraceEntry& entry) {
    if (entry.action_ != TraceEntry::SNAPSHOT) tracker(entry);
  });
  watch();
}

// Makes the engines report events if the history or a tracker needs them; otherwise stops the
// reports.
void Allocator::watch() {
  const bool is_watched = history_.is_watched();
  for (int i = 0; i < device_count_; ++i) {
    auto& device = devices_[static_cast<size_t>(i)];
    device.set_observer(is_watched ? &History::observe : nullptr, history_.log(device.index()));
  }
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) {
  if (!history_.is_enabled()) return;
  DeviceIndex index = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  history_.annotate(index, values);
}

void Allocator::pushCompileContext(std::string& text) {
  if (history_.is_enabled()) History::push_compile_context(text);
}

void Allocator::popCompileContext() {
  if (history_.is_enabled()) History::pop_compile_context();
}

}  // namespace plimsoll::live
