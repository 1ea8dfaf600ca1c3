#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpus.h"
#include "plimsoll/wheel_api.h"

// Offers the allocator in PyTorch's libc10_cuda as a table of plain C functions. PyTorch's
// functions differ between versions; for each difference, this file has one `requires`.

// libc10_cuda exports this function, but no header declares it.
namespace c10::cuda::_internal {
C10_CUDA_API __attribute__((weak)) void setHasPrimaryContext(bool (*answer)(c10::DeviceIndex));
}  // namespace c10::cuda::_internal

namespace plimsoll::wheel {
namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;

pytorch::CUDAAllocator& allocator() { return *pytorch::get(); }

c10::DeviceIndex index_of(int number) { return static_cast<c10::DeviceIndex>(number); }
c10::cuda::CUDAStream pytorch_stream(std::uint64_t stream, int number) {
  return stream == 0
             ? c10::cuda::getDefaultCUDAStream(index_of(number))
             : c10::cuda::getStreamFromExternal(handle_of<cudaStream_t>(stream), index_of(number));
}
void* pointer_to(std::uint64_t address) { return reinterpret_cast<void*>(address); }
std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
c10::MempoolId_t id_of(plimsoll_pool_id pool) { return {pool.first, pool.second}; }
plimsoll_pool_id id_of(c10::MempoolId_t pool) { return {pool.first, pool.second}; }

std::string error_text;
const char* last_error() { return error_text.c_str(); }

// Makes a call and returns its status; turns exceptions into a status.
template <typename Call>
int guarded(Call call) {
  try {
    call();
    return PLIMSOLL_SUCCESS;
  } catch (const c10::OutOfMemoryError& error) {
    error_text = error.what_without_backtrace();
    return PLIMSOLL_OUT_OF_MEMORY;
  } catch (const c10::Error& error) {
    error_text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    error_text = error.what();
  }
  return PLIMSOLL_FAILED;
}

// --- differences between versions ----------------------------------------------------------------

template <typename Allocator>
constexpr bool kCanUnset = requires(Allocator& a) { a.setUseOnOOM(0, c10::MempoolId_t{}, false); };

template <typename Allocator>
void set_use_on_oom(Allocator& of, int number, plimsoll_pool_id pool, bool on) {
  if constexpr (kCanUnset<Allocator>) {
    of.setUseOnOOM(index_of(number), id_of(pool), on);
  } else {
    if (!on) throw std::invalid_argument("in this PyTorch a pool marked use_on_oom stays one");
    of.setUseOnOOM(index_of(number), id_of(pool));
  }
}

template <typename Allocator>
constexpr bool kHasNoSplit = requires(Allocator& a) { a.setNoSplit(0, c10::MempoolId_t{}); };

template <typename Allocator>
void set_no_split(Allocator& of, int number, plimsoll_pool_id pool) {
  if constexpr (kHasNoSplit<Allocator>) {
    of.setNoSplit(index_of(number), id_of(pool));
  } else {
    throw std::invalid_argument("in this PyTorch no pool has no_split");
  }
}

template <typename Allocator>
void mark_capture(Allocator& of, int number, bool begins) {
  if constexpr (requires { of.markCaptureBegin(index_of(number)); }) {
    if (begins) {
      of.markCaptureBegin(index_of(number));
    } else {
      of.markCaptureEnd(index_of(number));
    }
  }
}

template <typename Allocator>
constexpr bool kHasMallocAt = requires(Allocator& a) { a.allocateWithAddress(1, nullptr); };

template <typename Allocator>
void allocate_at(Allocator& of, std::uint64_t address, std::uint64_t size) {
  if constexpr (kHasMallocAt<Allocator>) {
    (void)of.allocateWithAddress(size, pointer_to(address)).release_context();
  } else {
    throw std::invalid_argument("this PyTorch gives no memory at a stated address");
  }
}

// --- statistics, events, blocks ------------------------------------------------------------------

template <typename StatLike>
plimsoll_stat plain(const StatLike& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}
template <typename Array>
plimsoll_pool_stat plain_pools(const Array& stats) {
  return {plain(stats[0]), plain(stats[1]), plain(stats[2])};
}

template <typename Stats>
std::int64_t oom_rejections(const Stats& from) {
  if constexpr (requires { from.num_oom_rejections; }) return from.num_oom_rejections;
  return 0;
}

template <typename Stats, typename Visit>
void visit_pools(const Stats& from, Visit visit) {
  if constexpr (requires { from.reserved_bytes_by_private_pools; }) {
    for (const auto& [pool, stats] : from.reserved_bytes_by_private_pools) {
      visit(id_of(pool), plain_pools(stats));
    }
  }
}

// Returns plimsoll's number for the action of a trace entry. Returns -1 for an action that plimsoll
// does not know, and for one that plimsoll records in another way.
template <typename Entry>
int action_of(const Entry& entry) {
  switch (entry.action_) {
    case Entry::ALLOC: return PLIMSOLL_ALLOC;
    case Entry::FREE_REQUESTED: return PLIMSOLL_FREE_REQUESTED;
    case Entry::FREE_COMPLETED: return PLIMSOLL_FREE_COMPLETED;
    case Entry::SEGMENT_ALLOC: return PLIMSOLL_SEGMENT_ALLOC;
    case Entry::SEGMENT_FREE: return PLIMSOLL_SEGMENT_FREE;
    case Entry::SEGMENT_MAP: return PLIMSOLL_SEGMENT_MAP;
    case Entry::SEGMENT_UNMAP: return PLIMSOLL_SEGMENT_UNMAP;
    case Entry::OOM: return PLIMSOLL_OOM;
    default: return -1;
  }
}

template <typename Entry>
plimsoll_event event_of(const Entry& entry) {
  plimsoll_event event{};
  event.action = static_cast<std::uint32_t>(action_of(entry));
  event.address = static_cast<std::uint64_t>(entry.addr_);
  event.size = entry.size_;
  event.stream = stream_of(entry.stream_);
  if constexpr (requires { entry.mempool_; }) event.pool = id_of(entry.mempool_);
  return event;
}

template <typename Segment>
std::vector<plimsoll_block> blocks_of(const Segment& segment) {
  std::vector<plimsoll_block> blocks;
  std::uint64_t address = segment.address;
  for (const auto& block : segment.blocks) {
    const std::uint32_t state = block.allocated ? PLIMSOLL_ACTIVE_ALLOCATED
                                : block.active  ? PLIMSOLL_ACTIVE_PENDING_FREE
                                                : PLIMSOLL_INACTIVE;
    blocks.push_back({address, block.size, block.requested_size, state, 0});
    address += block.size;
  }
  return blocks;
}

// --- GPUs ----------------------------------------------------------------------------------------

// A GPU that plimsoll has opened.
struct Opened {
  void (*observe)(void* data, const plimsoll_event*) = nullptr;
  void* data = nullptr;
  std::uint64_t total = 0;  // the card's memory size; PyTorch reads it only once
  double fraction = -1;     // memory fraction that `begin` sets; -1 if it sets none
};
Opened gpus[kGpus];
int count = 0;           // number of GPUs
bool has_begun = false;  // PyTorch's allocator begins when any GPU is first used

// Adds a tracker for one GPU. PyTorch calls each tracker for the events of all GPUs; this one
// passes on only the events of its own GPU.
void attach(int number) {
  allocator().attachAllocatorTraceTracker([number](const pytorch::TraceEntry& entry) {
    const Opened& opened = gpus[number];
    if (entry.device_ != number || opened.observe == nullptr || action_of(entry) < 0) return;
    const plimsoll_event event = event_of(entry);
    opened.observe(opened.data, &event);
  });
}

void begin() {
  if (has_begun) return;
  has_begun = true;
  // PyTorch calls the function set here to find out whether a GPU has a primary context. Usually
  // libtorch_cuda sets it, but libtorch_cuda is not loaded here.
  if (c10::cuda::_internal::setHasPrimaryContext != nullptr) {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  }
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
  c10::cuda::detail::init_p2p_access_cache(kGpus);
#endif
  allocator().init(count);
  for (int number = 0; number < count; ++number) {
    attach(number);
    const double fraction = gpus[number].fraction;
    if (fraction >= 0) allocator().setMemoryFraction(fraction, index_of(number));
  }
}

// Makes a call with this GPU as the current one, and begins the allocator if necessary.
template <typename Call>
int guarded_on(int number, Call call) {
  cudaSetDevice(number);
  return guarded([&] {
    begin();
    call();
  });
}
// Makes a call as `guarded_on` does, but only if PyTorch's allocator has begun.
template <typename Call>
int guarded_if_begun(int number, Call call) {
  return has_begun ? guarded_on(number, call) : PLIMSOLL_SUCCESS;
}

// Returns whether a GPU may be opened under this number. Once PyTorch's allocator has begun, the
// number must be that of an earlier GPU. The new GPU must have the same memory size, and no memory
// of the earlier GPU may be allocated.
bool may_follow(int number, std::uint64_t total) {
  if (!has_begun) return number < kGpus && number <= count;
  return number < count && gpus[number].total == total &&
         allocator().getDeviceStats(index_of(number)).allocation[0].current == 0;
}

int open(int number, const plimsoll_driver_api* api, plimsoll_driver* driver,
         void (*observe)(void*, const plimsoll_event*), void* data) {
  return guarded([&] {
    std::uint64_t info[3]{};
    api->memory_info(driver, &info[0], &info[1], &info[2]);
    if (!may_follow(number, info[1])) {
      throw std::invalid_argument("PyTorch's own allocator serves one simulated machine a process");
    }
    static int drivers = 0;
    gpu(number) = {api, driver, ++drivers};
    gpus[number] = {observe, data, info[1]};
    count = std::max(count, number + 1);
    if (!has_begun) return;
    allocator().setMemoryFraction(1, index_of(number));
    allocator().resetPeakStats(index_of(number));
    allocator().resetAccumulatedStats(index_of(number));
  });
}

int close(int number, void* data) {
  if (gpus[number].observe == nullptr || gpus[number].data != data) return 0;
  gpu(number) = {};
  gpus[number].observe = nullptr;
  return 1;
}

int configure(const char* settings) {
  return guarded([&] { pytorch::setAllocatorSettings(settings); });
}

// --- blocks --------------------------------------------------------------------------------------

int malloc(int number, std::uint64_t size, std::uint64_t stream, std::uint64_t* address) {
  return guarded_on(number, [&] {
    *address = address_of(allocator().raw_alloc_with_stream(size, handle_of<cudaStream_t>(stream)));
  });
}

// Allocates a block at an address. PyTorch does this on the current stream only.
int malloc_at(int number, std::uint64_t address, std::uint64_t size, std::uint64_t stream) {
  return guarded_on(number, [&] {
    c10::cuda::setCurrentCUDAStream(pytorch_stream(stream, number));
    allocate_at(allocator(), address, size);
  });
}

int free(int number, std::uint64_t address) {
  return guarded_on(number, [&] { allocator().raw_delete(pointer_to(address)); });
}

int record_stream(int number, std::uint64_t address, std::uint64_t stream) {
  return guarded_on(number, [&] {
    c10::DataPtr data(pointer_to(address), pointer_to(address), allocator().raw_deleter(),
                      c10::Device(c10::kCUDA, index_of(number)));
    allocator().recordStream(data, pytorch_stream(stream, number));
    (void)data.release_context();
  });
}

std::int64_t synchronizations(int number) {
  return allocator().getDeviceStats(index_of(number)).num_sync_all_streams;
}
// For each GPU, how often PyTorch synchronized it because plimsoll emptied another GPU's cache.
std::int64_t for_others[kGpus];

// Empties the caches of all GPUs, because PyTorch cannot empty the cache of a single GPU. Adds the
// synchronizations of all GPUs except `number` to `for_others`.
int empty_cache(int number, plimsoll_pool_id pool) {
  return guarded_on(number, [&] {
    for (int i = 0; i < count; ++i) for_others[i] -= i == number ? 0 : synchronizations(i);
    allocator().emptyCache(id_of(pool));
    for (int i = 0; i < count; ++i) for_others[i] += i == number ? 0 : synchronizations(i);
  });
}

int set_fraction(int number, double fraction) {
  if (!has_begun) gpus[number].fraction = fraction;
  return guarded_if_begun(number,
                          [&] { allocator().setMemoryFraction(fraction, index_of(number)); });
}

// --- private pools -------------------------------------------------------------------------------

int begin_allocate_to_pool(int number, plimsoll_pool_id pool,
                           int (*filter)(void* data, std::uint64_t stream), void* data,
                           void (*drop)(void* data)) {
  return guarded_on(number, [&] {
    // `owner` calls `drop` when PyTorch drops the filter. If PyTorch does not accept the filter,
    // `owner` is empty and never calls `drop`.
    const auto owner = std::make_shared<std::unique_ptr<void, void (*)(void*)>>(nullptr, drop);
    allocator().beginAllocateToPool(index_of(number), id_of(pool),
                                    [filter, data, owner](cudaStream_t stream) {
                                      return filter(data, stream_of(stream)) != 0;
                                    });
    owner->reset(data);
  });
}
int end_allocate_to_pool(int number, plimsoll_pool_id pool) {
  return guarded_on(number, [&] { allocator().endAllocateToPool(index_of(number), id_of(pool)); });
}
int use_pool(int number, plimsoll_pool_id pool) {
  return guarded_on(number, [&] { allocator().createOrIncrefPool(index_of(number), id_of(pool)); });
}
int release_pool(int number, plimsoll_pool_id pool) {
  return guarded_on(number, [&] { allocator().releasePool(index_of(number), id_of(pool)); });
}
int set_pool_option(int number, plimsoll_pool_id pool, int option, int on) {
  return guarded_on(number, [&] {
    if (option == PLIMSOLL_USE_ON_OOM) {
      set_use_on_oom(allocator(), number, pool, on != 0);
    } else {
      set_no_split(allocator(), number, pool);
    }
  });
}
int set_capturing(int number, int on) {
  return guarded_on(number, [&] {
    gpu(number).captures += on != 0 ? 1 : -1;
    mark_capture(allocator(), number, on != 0);
  });
}

// --- results -----------------------------------------------------------------------------------

int statistics(int number, plimsoll_statistics* to,
               void (*visit)(void* data, plimsoll_pool_id, const plimsoll_pool_stat*), void* data) {
  return guarded_if_begun(number, [&] {
    const auto from = allocator().getDeviceStats(index_of(number));
    *to = {plain_pools(from.allocation),
           plain_pools(from.segment),
           plain_pools(from.active),
           plain_pools(from.inactive_split),
           plain_pools(from.allocated_bytes),
           plain_pools(from.reserved_bytes),
           plain_pools(from.active_bytes),
           plain_pools(from.inactive_split_bytes),
           plain_pools(from.requested_bytes),
           plain(from.oversize_allocations),
           plain(from.oversize_segments),
           from.num_alloc_retries,
           from.num_ooms,
           from.num_sync_all_streams - for_others[number],
           from.num_device_alloc,
           from.num_device_free,
           oom_rejections(from),
           from.max_split_size};
    visit_pools(from, [&](plimsoll_pool_id pool, const plimsoll_pool_stat& stat) {
      visit(data, pool, &stat);
    });
  });
}
int reset_peak_statistics(int number) {
  return guarded_if_begun(number, [&] { allocator().resetPeakStats(index_of(number)); });
}
int reset_accumulated_statistics(int number) {
  return guarded_if_begun(number, [&] {
    allocator().resetAccumulatedStats(index_of(number));
    for_others[number] = std::min(for_others[number], synchronizations(number));
  });
}

int largest_free_block(int number, std::uint64_t* size) {
  return guarded_if_begun(number, [&] {
    std::size_t largest = 1;  // PyTorch would replace 0 by the device's free memory
    allocator().cacheInfo(index_of(number), &largest);
    *size = largest;
  });
}

int segments(int number, void (*visit)(void* data, const plimsoll_segment*), void* data) {
  return guarded_on(number, [&] {
    for (const auto& from : allocator().snapshot().segments) {
      if (from.device != number) continue;
      const std::vector<plimsoll_block> blocks = blocks_of(from);
      const plimsoll_segment segment{from.address,
                                     from.total_size,
                                     stream_of(from.stream),
                                     id_of(from.owner_private_pool_id),
                                     from.is_large ? 0u : 1u,
                                     from.is_expandable ? 1u : 0u,
                                     blocks.size(),
                                     blocks.data(),
                                     0};
      visit(data, &segment);
    }
  });
}

constexpr plimsoll_wheel_api kApi{
    PLIMSOLL_WHEEL_API_VERSION,
    kHasMallocAt<pytorch::CUDAAllocator>,
    kHasNoSplit<pytorch::CUDAAllocator>,
    kCanUnset<pytorch::CUDAAllocator>,
    last_error,
    configure,
    open,
    close,
    malloc,
    malloc_at,
    free,
    record_stream,
    empty_cache,
    begin_allocate_to_pool,
    end_allocate_to_pool,
    use_pool,
    release_pool,
    set_pool_option,
    set_capturing,
    set_fraction,
    statistics,
    reset_peak_statistics,
    reset_accumulated_statistics,
    largest_free_block,
    segments,
};

}  // namespace
}  // namespace plimsoll::wheel

#pragma GCC visibility push(default)
// Returns the table. This library is loaded in a link namespace with a C library of its own. That C
// library keeps a pointer to the environment, which the program's C library may free later.
// PyTorch's allocator does not need the environment, so this function empties it.
extern "C" const plimsoll_wheel_api* plimsoll_wheel(void) {
  static char* nothing[] = {nullptr};
  environ = nothing;
  return &plimsoll::wheel::kApi;
}
#pragma GCC visibility pop
