#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime.h"
#include "side.h"

// The allocator in PyTorch's libc10_cuda, on the simulated GPU behind `runtime.h`, as the other
// side of the comparison. Its functions differ from version to version; each such difference is one
// `requires` here.

// Exported by libc10_cuda, but in no header.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*answer)(c10::DeviceIndex));
}  // namespace c10::cuda::_internal

namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;
using namespace plimsoll;

constexpr c10::DeviceIndex kDevice = 0;
constexpr std::size_t kMostEvents = 1'000'000;

cudaStream_t handle_of(StreamId stream) { return reinterpret_cast<cudaStream_t>(stream); }
c10::cuda::CUDAStream stream_of(StreamId stream) {
  return stream == 0 ? c10::cuda::getDefaultCUDAStream(kDevice)
                     : c10::cuda::getStreamFromExternal(handle_of(stream), kDevice);
}
void* pointer_to(Address address) { return reinterpret_cast<void*>(address); }
Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
c10::MempoolId_t id_of(PoolId pool) { return {pool.first, pool.second}; }
PoolId id_of(c10::MempoolId_t pool) { return {pool.first, pool.second}; }

// --- what differs from version to version --------------------------------------------------------

template <typename Allocator>
constexpr bool kCanUnset =
    requires(Allocator& a) { a.setUseOnOOM(kDevice, id_of(PoolId{}), false); };

template <typename Allocator>
void set_use_on_oom(Allocator& allocator, PoolId pool, bool on) {
  if constexpr (kCanUnset<Allocator>) {
    allocator.setUseOnOOM(kDevice, id_of(pool), on);
  } else if (on) {
    allocator.setUseOnOOM(kDevice, id_of(pool));
  }
}

template <typename Allocator>
constexpr bool kHasNoSplit = requires(Allocator& a) { a.setNoSplit(kDevice, id_of(PoolId{})); };

template <typename Allocator>
void set_no_split(Allocator& allocator, PoolId pool) {
  if constexpr (kHasNoSplit<Allocator>) allocator.setNoSplit(kDevice, id_of(pool));
}

template <typename Allocator>
void mark_capture(Allocator& allocator, bool capturing) {
  if constexpr (requires { allocator.markCaptureBegin(kDevice); }) {
    if (capturing) {
      allocator.markCaptureBegin(kDevice);
    } else {
      allocator.markCaptureEnd(kDevice);
    }
  }
}

template <typename Allocator>
constexpr bool kHasMallocAt = requires(Allocator& a) { a.allocateWithAddress(1, nullptr); };

template <typename Allocator>
void* allocate_at(Allocator& allocator, Address address, Bytes size) {
  if constexpr (kHasMallocAt<Allocator>) {
    return allocator.allocateWithAddress(size, pointer_to(address)).release_context();
  } else {
    return nullptr;
  }
}

template <typename Allocator>
void record_history(Allocator& allocator) {
  constexpr auto kAll = pytorch::RecordContext::NEVER;
  if constexpr (requires { allocator.recordHistory(true, nullptr, kMostEvents, kAll, true, {}); }) {
    allocator.recordHistory(true, nullptr, kMostEvents, kAll, true, {});
  } else {
    allocator.recordHistory(true, nullptr, kMostEvents, kAll, true);
  }
}

// --- statistics ----------------------------------------------------------------------------------

template <typename StatLike>
Stat plain(const StatLike& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}
template <typename Array>
PoolStat plain_pools(const Array& stats) {
  return {plain(stats[0]), plain(stats[1]), plain(stats[2])};
}

template <typename Stats>
void copy_newer(const Stats& from, Statistics& to) {
  if constexpr (requires { from.num_oom_rejections; }) {
    to.num_oom_rejections = from.num_oom_rejections;
  }
  if constexpr (requires { from.reserved_bytes_by_private_pools; }) {
    to.reserved_bytes_by_private_pools.clear();
    for (const auto& [pool, stats] : from.reserved_bytes_by_private_pools) {
      to.reserved_bytes_by_private_pools[id_of(pool)] = plain_pools(stats);
    }
  }
}

// --- history -------------------------------------------------------------------------------------

template <typename Entry>
Action action_of(const Entry& entry) {
  switch (entry.action_) {
    case Entry::ALLOC: return Action::alloc;
    case Entry::FREE_REQUESTED: return Action::free_requested;
    case Entry::FREE_COMPLETED: return Action::free_completed;
    case Entry::SEGMENT_ALLOC: return Action::segment_alloc;
    case Entry::SEGMENT_FREE: return Action::segment_free;
    case Entry::SEGMENT_MAP: return Action::segment_map;
    case Entry::SEGMENT_UNMAP: return Action::segment_unmap;
    case Entry::OOM: return Action::oom;
    default: return Action::snapshot;
  }
}

template <typename Entry>
TraceEvent event_of(const Entry& entry) {
  TraceEvent event;
  event.action = action_of(entry);
  event.address = static_cast<Address>(entry.addr_);
  event.size = entry.size_;
  event.stream = address_of(entry.stream_);
  if constexpr (requires { entry.mempool_; }) event.pool = id_of(entry.mempool_);
  return event;
}

template <typename Segment>
SegmentInfo segment_of(const Segment& from) {
  SegmentInfo to;
  to.address = from.address;
  to.total_size = from.total_size;
  to.stream = address_of(from.stream);
  to.pool = id_of(from.owner_private_pool_id);
  to.small = !from.is_large;
  to.expandable = from.is_expandable;
  Address address = from.address;
  for (const auto& block : from.blocks) {
    const BlockState state = block.allocated ? BlockState::active_allocated
                             : block.active  ? BlockState::active_pending_free
                                             : BlockState::inactive;
    to.blocks.push_back({address, block.size, block.requested_size, state});
    address += block.size;
  }
  return to;
}

// Runs a function and turns its errors into those of a Side.
template <typename Function>
auto guard(Function function) {
  try {
    return function();
  } catch (const c10::OutOfMemoryError& error) {
    throw OutOfMemoryError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw OtherError(error.what_without_backtrace());
  }
}

class PytorchSide final : public Side {
 public:
  PytorchSide(Bytes memory, const std::string& settings) {
    oracle_make_gpu(memory);
    // Otherwise libtorch_cuda says so.
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
    c10::cuda::detail::init_p2p_access_cache(1);
#endif
    if (!settings.empty()) make_settings(settings);
    allocator().init(1);
    record_history(allocator());
  }

  Address malloc(Bytes size, StreamId stream) override {
    return guard(
        [&] { return address_of(allocator().raw_alloc_with_stream(size, handle_of(stream))); });
  }
  Address malloc_at(Address address, Bytes size, StreamId, PoolId) override {
    return guard([&] { return address_of(allocate_at(allocator(), address, size)); });
  }
  void free(Address address) override {
    guard([&] { allocator().raw_delete(pointer_to(address)); });
  }
  void record_stream(Address address, StreamId stream) override {
    c10::DataPtr data(pointer_to(address), pointer_to(address), allocator().raw_deleter(),
                      c10::Device(c10::kCUDA, kDevice));
    allocator().recordStream(data, stream_of(stream));
    (void)data.release_context();
  }
  void empty_cache(PoolId pool) override {
    guard([&] { allocator().emptyCache(id_of(pool)); });
  }

  void use_pool(PoolId pool) override { allocator().createOrIncrefPool(kDevice, id_of(pool)); }
  void begin_allocate_to_pool(PoolId pool, Allocator::Filter filter) override {
    allocator().beginAllocateToPool(kDevice, id_of(pool),
                                    [filter = std::move(filter)](cudaStream_t stream) {
                                      return !filter || filter(reinterpret_cast<StreamId>(stream));
                                    });
  }
  void end_allocate_to_pool(PoolId pool) override {
    allocator().endAllocateToPool(kDevice, id_of(pool));
  }
  void set_capturing(bool capturing) override {
    oracle_set_capturing(capturing);
    mark_capture(allocator(), capturing);
  }
  void release_pool(PoolId pool) override { allocator().releasePool(kDevice, id_of(pool)); }
  void set_pool_option(PoolId pool, PoolOption option, bool on) override {
    if (option == PoolOption::use_on_oom) {
      set_use_on_oom(allocator(), pool, on);
    } else {
      set_no_split(allocator(), pool);
    }
  }

  void set_fraction(double fraction) override { allocator().setMemoryFraction(fraction, kDevice); }
  void make_settings(const std::string& settings) override {
    guard([&] { pytorch::setAllocatorSettings(settings); });
  }
  void reset_peak_statistics() override { allocator().resetPeakStats(kDevice); }
  void reset_accumulated_statistics() override { allocator().resetAccumulatedStats(kDevice); }

  const Statistics& statistics() override {
    const auto from = allocator().getDeviceStats(kDevice);
    statistics_.allocation = plain_pools(from.allocation);
    statistics_.segment = plain_pools(from.segment);
    statistics_.active = plain_pools(from.active);
    statistics_.inactive_split = plain_pools(from.inactive_split);
    statistics_.allocated_bytes = plain_pools(from.allocated_bytes);
    statistics_.reserved_bytes = plain_pools(from.reserved_bytes);
    statistics_.active_bytes = plain_pools(from.active_bytes);
    statistics_.inactive_split_bytes = plain_pools(from.inactive_split_bytes);
    statistics_.requested_bytes = plain_pools(from.requested_bytes);
    statistics_.oversize_allocations = plain(from.oversize_allocations);
    statistics_.oversize_segments = plain(from.oversize_segments);
    statistics_.num_alloc_retries = from.num_alloc_retries;
    statistics_.num_ooms = from.num_ooms;
    statistics_.num_sync_all_streams = from.num_sync_all_streams;
    statistics_.num_device_alloc = from.num_device_alloc;
    statistics_.num_device_free = from.num_device_free;
    statistics_.max_split_size = from.max_split_size;
    copy_newer(from, statistics_);
    return statistics_;
  }
  std::vector<SegmentInfo> segments() override {
    std::vector<SegmentInfo> segments;
    for (const auto& segment : allocator().snapshot().segments) {
      segments.push_back(segment_of(segment));
    }
    return segments;
  }
  std::vector<TraceEvent> history() override {
    std::vector<TraceEvent> events;
    const auto snapshot = allocator().snapshot();
    for (const auto& entry : snapshot.device_traces.at(kDevice)) events.push_back(event_of(entry));
    return events;
  }
  SimulatedDriver& gpu() override { return oracle_gpu(); }

 private:
  static pytorch::CUDAAllocator& allocator() { return *pytorch::get(); }

  Statistics statistics_;
};

}  // namespace

namespace {

// Whether PyTorch would go through these streams as they are given, whichever came first.
bool is_in_order(std::vector<StreamId> streams) {
  const std::vector<StreamId> ordered = streams;
  do {
    ska::flat_hash_map<c10::cuda::CUDAStream, int> table;
    for (const StreamId stream : streams) table[stream_of(stream)] = 0;
    std::vector<StreamId> found;
    for (const auto& [stream, nothing] : table)
      found.push_back(reinterpret_cast<StreamId>(stream.stream()));
    if (found != ordered) return false;
  } while (std::next_permutation(streams.begin(), streams.end()));
  return true;
}

// Adds streams to those that were found until there are enough; false if it cannot.
bool find_streams(std::vector<StreamId>& found) {
  if (found.size() == kStreams) return is_in_order(found);
  // CUDA keeps 1 and 2 for streams of its own, and PyTorch takes only even addresses.
  constexpr StreamId kStep = 16;
  for (StreamId next = found.back() + kStep; next < 100 * kStep; next += kStep) {
    if (!std::all_of(found.begin(), found.end(),
                     [&](StreamId before) { return is_in_order({before, next}); })) {
      continue;
    }
    found.push_back(next);
    if (find_streams(found)) return true;
    found.pop_back();
  }
  return false;
}

std::array<StreamId, kStreams> find_streams() {
  std::vector<StreamId> found{0};
  if (!find_streams(found)) throw std::logic_error("no streams have a stable order");
  std::array<StreamId, kStreams> streams{};
  std::copy(found.begin(), found.end(), streams.begin());
  return streams;
}

}  // namespace

const std::array<StreamId, kStreams>& streams_in_order() {
  static const std::array<StreamId, kStreams> streams = find_streams();
  return streams;
}

bool pytorch_has_no_split() { return kHasNoSplit<pytorch::CUDAAllocator>; }
bool pytorch_can_unset_use_on_oom() { return kCanUnset<pytorch::CUDAAllocator>; }
bool pytorch_has_malloc_at() { return kHasMallocAt<pytorch::CUDAAllocator>; }

std::unique_ptr<Side> make_pytorch(Bytes memory, const std::string& settings) {
  return std::make_unique<PytorchSide>(memory, settings);
}
