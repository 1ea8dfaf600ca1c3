#include "host_allocator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>

namespace plimsoll::live {

namespace {

// Frees pinned memory. It is the deleter of each tensor in this allocator's memory. It may run
// while an exception unwinds the stack, so it must not throw.
void delete_host_block(void* pointer) {
  if (pointer != nullptr) api->host_free(as_number(pointer));
}

at::Stat torch_stat(const plimsoll_stat& stat) {
  at::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

at::DurationStat torch_stat(const plimsoll_call_time& time) {
  at::DurationStat result;
  result.total = time.total;
  result.max = time.max;
  result.min = time.min;
  result.count = time.count;
  return result;
}

// Fills PyTorch's statistics. In PyTorch 2.9, "allocated" means the memory that the program holds.
// In later versions, it means the memory that was taken from the system.
template <typename Stats>
void fill(Stats& result, const plimsoll_host_statistics& now) {
  if constexpr (requires { result.active_requests; }) {
    result.active_requests = torch_stat(now.active);
    result.active_bytes = torch_stat(now.active_bytes);
    result.allocations = torch_stat(now.segment);
    result.allocated_bytes = torch_stat(now.reserved_bytes);
  } else {
    result.allocation = torch_stat(now.active);
    result.allocated_bytes = torch_stat(now.active_bytes);
    result.segment = torch_stat(now.segment);
    result.reserved_bytes = torch_stat(now.reserved_bytes);
  }
}

}  // namespace

void install_host_allocator(OpenEngine open) {
  constexpr uint8_t kPriority = 1;  // PyTorch's own allocator has priority 0
  at::HostAllocator* original = nullptr;
  try {
    original = at::getHostAllocator(c10::DeviceType::CUDA);
  } catch (const c10::Error&) {
    return;  // this PyTorch cannot replace its pinned allocator
  }
  // Never destroyed: tensors may be freed at the very end of the process.
  at::setHostAllocator(c10::DeviceType::CUDA, new HostAllocator(original, open), kPriority);
}

// Returns a device's engine. The allocator of GPU memory uses the same engine. The engine is opened
// when one of the two allocators needs it for the first time.
plimsoll_engine* HostAllocator::engine(DeviceIndex index) {
  auto& known = engines_.at(static_cast<size_t>(index));
  if (plimsoll_engine* engine = known.load(std::memory_order_acquire)) return engine;
  std::array<char, 1024> problem{};
  plimsoll_engine* engine = open_(index, problem.data(), problem.size());
  TORCH_CHECK(engine != nullptr, "plimsoll cannot use GPU ", static_cast<int>(index), ": ",
              problem.data());
  known.store(engine, std::memory_order_release);
  return engine;
}

// Returns an engine for a request. Every GPU can reach pinned memory, so any engine will do. A GPU
// that already has a context is preferred, because a new context takes hundreds of MiB of a GPU.
plimsoll_engine* HostAllocator::any_engine() {
  plimsoll_engine* known = any_engine_.load(std::memory_order_acquire);
  if (known == nullptr) [[unlikely]] {
    const auto used = c10::cuda::getDeviceIndexWithPrimaryContext();
    known = engine(used.has_value() ? *used : c10::cuda::current_device());
    any_engine_.store(known, std::memory_order_release);
  }
  return known;
}

c10::DataPtr HostAllocator::allocate(size_t size) {
  uint64_t address = 0;
  if (size != 0) {
    const int status =
        api->host_malloc(any_engine(), size, engine_pool(pool_of_request()), &address);
    TORCH_CHECK_WITH(OutOfMemoryError, status != PLIMSOLL_OUT_OF_MEMORY, api->last_error());
    check(status);
  }
  void* pointer = as_pointer(address);
  return {pointer, pointer, &delete_host_block, c10::Device(c10::DeviceType::CPU)};
}

void HostAllocator::copy_data(void* destination, const void* source, size_t size) const {
  default_copy_data(destination, source, size);
}

// Notes that a stream uses pinned memory. If this allocator made the tensor's storage, `context` is
// the block's address. If the storage was made over a part of a block, `context` is something else.
// So this function tries `pointer` too.
bool HostAllocator::record_event(void* pointer, void* context, c10::Stream stream) {
  plimsoll_engine* used = engine(stream.device_index());
  const c10::cuda::CUDAStream cuda_stream(c10::cuda::CUDAStream::UNCHECKED, stream);
  for (const void* place : {context, pointer}) {
    const int status = api->host_record(used, as_number(place), as_number(cuda_stream.stream()));
    if (status == PLIMSOLL_UNKNOWN_ADDRESS) continue;
    check(status);
    return true;
  }
  return original_->record_event(pointer, context, stream);
}

void HostAllocator::empty_cache() {
  check(api->host_empty_cache());
  original_->empty_cache();
}

// --- graphs ------------------------------------------------------------------------------------

MempoolId_t HostAllocator::pool_of_request() {
  if (capture_count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return {0, 0};
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream();
  const std::scoped_lock lock(captures_mutex_);
  for (const auto& [pool, filter] : captures_) {
    if (filter(stream)) return pool;
  }
  return {0, 0};
}

void HostAllocator::begin_allocate_to_pool(MempoolId_t pool, Filter filter) {
  plimsoll_engine* any = any_engine();
  const std::scoped_lock lock(captures_mutex_);
  const auto is_same = [&](const auto& capture) { return capture.first == pool; };
  TORCH_CHECK(std::none_of(captures_.begin(), captures_.end(), is_same),
              "beginAllocateToPool: already recording to mempool_id");
  check(api->host_begin_allocate_to_pool(any, engine_pool(pool)));
  captures_.emplace_back(pool, std::move(filter));
  ++capture_count_;
}

void HostAllocator::end_allocate_to_pool(MempoolId_t pool) {
  const std::scoped_lock lock(captures_mutex_);
  const auto is_same = [&](const auto& capture) { return capture.first == pool; };
  const auto ended = std::find_if(captures_.begin(), captures_.end(), is_same);
  TORCH_CHECK(ended != captures_.end(), "endAllocatePool: not currently recording to mempool_id");
  captures_.erase(ended);
  --capture_count_;
  check(api->host_end_allocate_to_pool());
}

void HostAllocator::release_pool(MempoolId_t pool) {
  check(api->host_release_pool(engine_pool(pool)));
}

// --- statistics --------------------------------------------------------------------------------

at::HostStats HostAllocator::get_stats() {
  plimsoll_host_statistics now{};
  api->host_statistics(&now);
  at::HostStats result;
  fill(result, now);
  result.host_alloc_time = torch_stat(now.allocate_time);
  result.host_free_time = torch_stat(now.deallocate_time);
  result.num_host_alloc = now.segment.allocated;
  result.num_host_free = now.segment.freed;
  return result;
}

void HostAllocator::reset_accumulated_stats() { api->host_reset_accumulated_statistics(); }

void HostAllocator::reset_peak_stats() { api->host_reset_peak_statistics(); }

}  // namespace plimsoll::live
