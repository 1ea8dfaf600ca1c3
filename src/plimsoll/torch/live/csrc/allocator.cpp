#include "allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/env.h>
#include <cuda_runtime_api.h>

#include <optional>

namespace plimsoll::live {

namespace {

Allocator* the_allocator = nullptr;

// Frees a block. It is the deleter of each tensor whose memory comes from an engine.
void delete_block(void* pointer) { the_allocator->free(pointer); }

// Returns whether PYTORCH_NO_CUDA_MEMORY_CACHING is set. PyTorch's own allocator then passes every
// request on to the driver.
bool is_caching_forbidden() {
  static const bool is_forbidden = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
  return is_forbidden;
}

c10::Device cuda_device(DeviceIndex index) { return {c10::DeviceType::CUDA, index}; }

bool run_free_memory_callbacks() {
  bool is_memory_free = false;
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    is_memory_free |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return is_memory_free;
}

}  // namespace

Allocator* installed() { return the_allocator; }

Installation install(const plimsoll_engine_api* table, OpenEngine open) {
  if (table->version != PLIMSOLL_ENGINE_API_VERSION) return Installation::wrong_table;
  torch_allocator::CUDAAllocator* original = torch_allocator::get();
  const int device_count = original->initialized() ? c10::cuda::device_count() : 0;
  for (int i = 0; i < device_count; ++i) {
    const auto statistics = original->getDeviceStats(static_cast<DeviceIndex>(i));
    if (statistics.segment[0].current != 0 || statistics.allocation[0].allocated != 0) {
      return Installation::memory_in_use;
    }
  }
  api = table;
  // Never destroyed: tensors may be freed at the very end of the process.
  the_allocator = new Allocator(original, open);
  if (device_count != 0) the_allocator->init(device_count);
  torch_allocator::allocator.store(the_allocator);
  c10::SetAllocator(c10::DeviceType::CUDA, the_allocator);
  return Installation::done;
}

Allocator::Allocator(torch_allocator::CUDAAllocator* original, OpenEngine open)
    : original_(original),
      open_(open),
      is_enabled_(original->isEnabled() && !is_caching_forbidden()) {}

void Allocator::init(int device_count) {
  original_->init(device_count);
  for (int i = device_count_; i < device_count; ++i) {
    const auto index = static_cast<DeviceIndex>(i);
    cudaDeviceProp properties{};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    auto& device = devices_[static_cast<size_t>(i)];
    device.prepare(index, properties.totalGlobalMem, original_->getMemoryFraction(index), open_);
  }
  device_count_ = std::max(device_count_, device_count);
  watch();
}

// Returns the current device, without asking CUDA if there is only one.
DeviceIndex Allocator::current_device() const {
  DeviceIndex index = 0;
  if (device_count_ != 1) C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  return index;
}

Device& Allocator::device(DeviceIndex index) {
  TORCH_CHECK(0 <= index && index < device_count_, "Invalid device argument ",
              static_cast<int>(index), ": did you call init?");
  return devices_[static_cast<size_t>(index)];
}

void Allocator::adopt(DeviceIndex index) {
  if (index < device_count_) static_cast<void>(device(index).engine());
}

void Allocator::enable(bool value) {
  original_->enable(value);
  is_enabled_ = value && !is_caching_forbidden();
}

c10::DataPtr Allocator::allocate(size_t size) {
  constexpr size_t kExbibyte = size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, size < kExbibyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const DeviceIndex index = current_device();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
  if (is_original_asked(index, stream)) [[unlikely]] {
    return original_->allocate(size);
  }
  void* pointer = size == 0 ? nullptr : malloc(device(index), size, stream);
  return {pointer, pointer, &delete_block, cuda_device(index)};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return is_enabled_ ? &delete_block : original_->raw_deleter();
}

void Allocator::copy_data(void* destination, const void* source, size_t size) const {
  C10_CUDA_CHECK(cudaMemcpy(destination, source, size, cudaMemcpyDeviceToDevice));
}

void* Allocator::raw_alloc(size_t size) {
  if (size == 0) return nullptr;
  return raw_alloc_with_stream(size, c10::cuda::getCurrentCUDAStream(current_device()).stream());
}

void* Allocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  const DeviceIndex index = current_device();
  if (is_original_asked(index, stream)) [[unlikely]] {
    return original_->raw_alloc_with_stream(size, stream);
  }
  return malloc(device(index), size, stream);
}

bool Allocator::is_original_asked(DeviceIndex index, cudaStream_t stream) const {
  if (!is_enabled_.load(std::memory_order_relaxed)) [[unlikely]] {
    return true;
  }
  return begun_pools_.load(std::memory_order_relaxed) != 0 && custom_pools_.any() &&
         custom_pools_.take(index, stream);
}

void* Allocator::malloc(Device& device, size_t size, cudaStream_t stream) {
  plimsoll_engine* engine = device.engine();
  const History::Call call(history_, RecordContext::STATE);
  uint64_t address = 0;
  int status = PLIMSOLL_SUCCESS;
  if (begun_pools_.load(std::memory_order_relaxed) == 0) [[likely]] {
    status = api->malloc(engine, size, as_number(stream), 0, &address);
  } else {
    // A CUDA graph may be captured now. The relaxed mode lets the engine take memory from the
    // driver during the capture. The graph does not repeat the driver's call, so the engine must
    // keep the memory as long as the graph exists. The engine counts the graph as a use of its
    // pool, and keeps the pool's memory until the last use ends.
    const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
    status = api->malloc(engine, size, as_number(stream), 0, &address);
  }
  if (status != PLIMSOLL_SUCCESS) [[unlikely]] {
    address = recover(device, size, stream, status);
  }
  void* pointer = as_pointer(address);
  if (history_.is_enabled()) [[unlikely]] {
    note_first_block(device, pointer);
  }
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    if (const auto place = device.locate(pointer)) {
      report_to_profiler(device, pointer, static_cast<int64_t>(place->block_size));
    }
  }
  if (const auto* tracer = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    (*tracer)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, address);
  }
  return pointer;
}

void Allocator::note_first_block(const Device& device, const void* pointer) {
  const uint64_t address = as_number(pointer);
  if (!history_.is_segment(device.index(), address)) return;
  if (const auto place = device.locate(pointer)) {
    history_.note_first_block(device.index(), address, place->block_size);
  }
}

// Makes the last attempts after an engine found no memory. It first calls PyTorch's callbacks,
// which free memory that other processes have finished using. PyTorch's own allocator calls them
// before it asks the driver. Here they run only after the engine has failed and has counted the
// failure in its statistics.
uint64_t Allocator::recover(Device& device, size_t size, cudaStream_t stream, int status) {
  uint64_t address = 0;
  const std::string text = api->last_error();
  if (status == PLIMSOLL_OUT_OF_MEMORY) {
    if (run_free_memory_callbacks()) {
      status = api->malloc(device.engine(), size, as_number(stream), 0, &address);
      if (status == PLIMSOLL_SUCCESS) return address;
    }
    if (custom_pools_.is_last_resort(device.index())) {
      try {
        return as_number(original_->raw_alloc_with_stream(size, stream));
      } catch (const c10::OutOfMemoryError&) {  // the function throws a more precise error below
      }
    }
    throw_out_of_memory(device, size, text);
  }
  check(status);
  return address;
}

void Allocator::throw_out_of_memory(Device& device, size_t size, const std::string& text) {
  plimsoll_statistics statistics{};
  api->statistics(device.engine(), &statistics);
  const auto allocated = static_cast<size_t>(statistics.allocated_bytes.all.current);
  const auto reserved = static_cast<size_t>(statistics.reserved_bytes.all.current);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), allocated, reserved,
                                   cuda_device(device.index()));
  uint64_t free = 0;
  uint64_t total = 0;
  check(api->memory_info(device.engine(), &free, &total));
  std::vector<torch_allocator::OutOfMemoryObserver> observers;
  std::vector<OomRejectionObserver> rejection_observers;
  {
    const std::scoped_lock lock(observers_mutex_);
    auto& seen = rejections_seen_[static_cast<size_t>(device.index())];
    if (statistics.num_oom_rejections != seen) rejection_observers = rejection_observers_;
    seen = statistics.num_oom_rejections;
    observers = oom_observers_;
  }
  for (const auto& observer : rejection_observers) {
    observer(device.index(), size, allocated, total);
  }
  for (const auto& observer : observers) {
    observer(device.index(), size, device.allowed(), free);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

void Allocator::free(void* pointer) {
  if (pointer == nullptr) return;
  const uint64_t address = as_number(pointer);
  const History::Call call(history_, RecordContext::ALL);
  if (sharing_.has_exports()) [[unlikely]] {
    sharing_.forget(address);
  }
  plimsoll_place place{};
  const auto* tracer = c10::impl::GPUTrace::get_trace();
  const bool is_profiled = c10::memoryProfilingEnabled();
  if (tracer != nullptr || is_profiled) [[unlikely]] {
    if (owner(pointer, &place) != nullptr && tracer != nullptr) {
      (*tracer)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, address);
    }
  }
  Device* device = free_in_engine(address);
  if (device == nullptr) [[unlikely]] {
    original_->raw_delete(pointer);
  } else if (is_profiled) [[unlikely]] {
    report_to_profiler(*device, pointer, -static_cast<int64_t>(place.block_size));
  }
}

// Frees a block and returns its device. It tries the device of this thread's previous free first.
Device* Allocator::free_in_engine(uint64_t address) {
  thread_local int last = 0;
  const auto is_freed_by = [address](Device& device) {
    plimsoll_engine* engine = device.engine_if_open();
    if (engine == nullptr) return false;
    const int status = api->free(engine, address, 0);
    if (status == PLIMSOLL_UNKNOWN_ADDRESS) return false;
    check(status);
    return true;
  };
  if (auto& device = devices_[static_cast<size_t>(last)]; is_freed_by(device)) [[likely]] {
    return &device;
  }
  for (int i = 0; i < device_count_; ++i) {
    auto& device = devices_[static_cast<size_t>(i)];
    if (i == last || !is_freed_by(device)) continue;
    last = i;
    return &device;
  }
  return nullptr;
}

Device* Allocator::owner(const void* pointer, plimsoll_place* place) {
  for (int i = 0; i < device_count_; ++i) {
    auto& device = devices_[static_cast<size_t>(i)];
    if (const auto found = device.locate(pointer)) {
      *place = *found;
      return &device;
    }
  }
  return nullptr;
}

void Allocator::report_to_profiler(Device& device, void* pointer, int64_t size_change) {
  plimsoll_statistics statistics{};
  api->statistics(device.engine(), &statistics);
  c10::reportMemoryUsageToProfiler(
      pointer, size_change, static_cast<size_t>(statistics.allocated_bytes.all.current),
      static_cast<size_t>(statistics.reserved_bytes.all.current), cuda_device(device.index()));
}

void Allocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  if (pointer.get() == nullptr) return;
  if (pointer.get_deleter() == original_->raw_deleter()) {
    original_->recordStream(pointer, stream);
    return;
  }
  if (pointer.get_deleter() != &delete_block) return;  // another process allocated it
  plimsoll_place place{};
  const Device* device = owner(pointer.get(), &place);
  TORCH_INTERNAL_ASSERT(device != nullptr, "No allocated block can be found");
  check(api->record_stream(device->engine_if_open(), place.block, as_number(stream.stream())));
}

c10::DataPtr Allocator::allocate_at(size_t size, void* pointer) {
  const DeviceIndex index = current_device();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
  const History::Call call(history_, RecordContext::STATE);
  const History::Placing placing(as_number(pointer));
  check(api->malloc_at(device(index).engine(), as_number(pointer), size, as_number(stream), {}));
  if (history_.is_enabled()) note_first_block(device(index), pointer);
  return {pointer, pointer, &delete_block, cuda_device(index)};
}

void* Allocator::getBaseAllocation(void* pointer, size_t* size) {
  plimsoll_place place{};
  if (owner(pointer, &place) == nullptr) return original_->getBaseAllocation(pointer, size);
  if (size != nullptr) *size = place.segment_size;
  return as_pointer(place.segment);
}

torch_allocator::ShareableHandle Allocator::shareIpcHandle(void* pointer) {
  plimsoll_place place{};
  Device* device = owner(pointer, &place);
  if (device == nullptr) return original_->shareIpcHandle(pointer);
  return sharing_.share(*device, pointer, place);
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  if (!Sharing::is_ours(handle)) return original_->getIpcDevPtr(std::move(handle));
  return sharing_.open(device(current_device()), handle);
}

void Allocator::enablePeerAccess(DeviceIndex index, DeviceIndex accessed) {
  // The first call is for the memory of custom pools, the second for the engine's memory.
  original_->enablePeerAccess(index, accessed);
  device(accessed).add_peer(index);
}

// Copies memory between devices. If peer access is off, only cudaMemcpyPeerAsync can copy memory
// that is mapped in pieces.
cudaError_t Allocator::memcpyAsync(void* destination, int destination_device, const void* source,
                                   int source_device, size_t size, cudaStream_t stream,
                                   bool p2p_enabled) {
  const auto is_mapped = [this](const void* pointer) {
    plimsoll_place place{};
    return owner(pointer, &place) != nullptr && place.is_virtual != 0;
  };
  if (p2p_enabled || source_device == destination_device ||
      (!is_mapped(destination) && !is_mapped(source))) {
    return cudaMemcpyAsync(destination, source, size, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(destination, destination_device, source, source_device, size, stream);
}

void Allocator::attachOutOfMemoryObserver(torch_allocator::OutOfMemoryObserver observer) {
  const std::scoped_lock lock(observers_mutex_);
  oom_observers_.push_back(std::move(observer));
}

void Allocator::add_rejection_observer(OomRejectionObserver observer) {
  const std::scoped_lock lock(observers_mutex_);
  rejection_observers_.push_back(std::move(observer));
}

}  // namespace plimsoll::live
