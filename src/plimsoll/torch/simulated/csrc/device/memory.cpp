#include "device/memory.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <utility>

#include "device/host_times.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

// All live allocations, by their first address.
class Live {
 public:
  static Live& instance() {
    static auto* const live = new Live;
    return *live;
  }
  void add(Allocation& allocation) {
    const std::lock_guard lock(mutex_);
    by_address_[{allocation.device, allocation.address}] = &allocation;
  }
  void remove(const Allocation& allocation) {
    const std::lock_guard lock(mutex_);
    const auto place = by_address_.find({allocation.device, allocation.address});
    // Within a CUDA graph's memory, a later allocation may have got the same address. Then
    // the entry belongs to the later allocation and stays.
    if (place != by_address_.end() && place->second == &allocation) by_address_.erase(place);
  }
  Allocation* find(c10::DeviceIndex device, std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    auto after = by_address_.upper_bound({device, address});
    if (after == by_address_.begin()) return nullptr;
    Allocation* const found = (--after)->second;
    const bool is_within = found->device == device && address < found->address + found->size;
    return is_within ? found : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, std::uint64_t>, Allocation*> by_address_;
};

// PyTorch's allocator rounds sizes up to a multiple of this, and tells PyTorch's profiler the
// rounded sizes.
constexpr std::size_t kBlockBytes = 512;

void tell_profiler(const Allocation& allocation, bool is_allocated) {
  if (!c10::memoryProfilingEnabled()) return;
  const auto bytes =
      static_cast<std::int64_t>((allocation.size + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(allocation.address),
                                   is_allocated ? bytes : -bytes, 0, 0,
                                   c10::Device(c10::DeviceType::CUDA, allocation.device));
}

void release(void* context) {
  auto* const allocation = static_cast<Allocation*>(context);
  if (!allocation->is_lent) let_go(*allocation);
  delete allocation;
}

constexpr std::size_t kExbibyte = std::size_t{1} << 60;

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    Runtime& state = runtime();
    const c10::DeviceIndex index = state.current_device();
    const c10::Device device(c10::DeviceType::CUDA, index);
    if (size == 0) return {nullptr, nullptr, &release, device};
    TORCH_CHECK_WITH(OutOfMemoryError, size < kExbibyte,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    state.use(index);
    if (state.keeps_history) state.pass_host_time(index, kHistoryHostNs);
    std::uint64_t address = 0;
    const int status = state.engines->malloc(
        state.device(index).engine, size, static_cast<std::uint64_t>(state.current_stream(index)),
        state.site(current_operation()), &address);
    if (status != PLIMSOLL_SUCCESS) fail(status, index, size);
    auto* const allocation = new Allocation(address, size, index, state.next_serial(index));
    state.devices[static_cast<std::size_t>(index)].live_bytes += size;
    tell_profiler(*allocation, true);
    state.count_events(1);
    return {reinterpret_cast<void*>(address), allocation, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  [[noreturn]] static void fail(int status, c10::DeviceIndex index, std::size_t size) {
    const Runtime& state = runtime();
    const std::string message = state.engines->last_error();
    TORCH_CHECK(status == PLIMSOLL_OUT_OF_MEMORY, message);
    state.callbacks.out_of_memory(static_cast<std::uint64_t>(index), size);
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
};

}  // namespace

Allocation::Allocation(std::uint64_t address, std::size_t size, c10::DeviceIndex device,
                       std::uint64_t serial)
    : address(address), size(size), device(device), serial(serial) {
  Live::instance().add(*this);
}
Allocation::~Allocation() { Live::instance().remove(*this); }

c10::Allocator* device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

// Returns the storage's pointer without PyTorch's check. With the check, PyTorch throws if a CUDA
// graph has overwritten the memory. plimsoll needs the pointer even while a graph is replayed and
// while storages are destroyed, and nothing may throw then.
static const c10::DataPtr& unchecked_pointer(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
}

Allocation* held_by(const c10::StorageImpl& storage) {
  const c10::DataPtr& pointer = unchecked_pointer(storage);
  return pointer.get_deleter() == &release ? static_cast<Allocation*>(pointer.get_context())
                                           : nullptr;
}

Allocation* allocation_of(const c10::StorageImpl& storage) {
  if (Allocation* const held = held_by(storage)) return held;
  const c10::DataPtr& pointer = unchecked_pointer(storage);
  if (pointer.get() == nullptr || !pointer.device().is_cuda()) return nullptr;
  const auto address = reinterpret_cast<std::uint64_t>(pointer.get());
  Allocation* const found = allocation_at(pointer.device().index(), address);
  const bool is_within =
      found != nullptr && address + storage.nbytes() <= found->address + found->size;
  return is_within ? found : nullptr;
}

Allocation* allocation_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? allocation_of(*tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

std::size_t offset_of(const at::Tensor& tensor) {
  const auto within = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const Allocation* const allocation = allocation_of(storage);
  if (allocation == nullptr) return within;
  return reinterpret_cast<std::uint64_t>(unchecked_pointer(storage).get()) - allocation->address +
         within;
}

void check_access(const at::Tensor& tensor) {
  // Sparse and nested tensors have no memory of their own; their parts are checked instead.
  if (!tensor.is_cuda() || tensor.layout() != c10::kStrided) return;
  static_cast<void>(tensor.unsafeGetTensorImpl()->data());
}

Allocation* allocation_at(c10::DeviceIndex device, std::uint64_t address) {
  return Live::instance().find(device, address);
}

at::DataPtr lent_memory(std::uint64_t address, std::size_t size, c10::DeviceIndex device) {
  auto* const allocation =
      new Allocation(address, size, device, runtime().device(device).allocations);
  allocation->is_lent = true;
  return {reinterpret_cast<void*>(address), allocation, &release,
          c10::Device(c10::DeviceType::CUDA, device)};
}

void own(Allocation& allocation) {
  allocation.is_lent = false;
  runtime().devices[static_cast<std::size_t>(allocation.device)].live_bytes += allocation.size;
}

void disown(Allocation& allocation) {
  allocation.is_lent = true;
  runtime().devices[static_cast<std::size_t>(allocation.device)].live_bytes -= allocation.size;
}

void let_go(Allocation& allocation) {
  Runtime& state = runtime();
  if (!state.is_over) {
    if (state.keeps_history) state.pass_host_time(allocation.device, kHistoryHostNs);
    state.engines->free(state.device(allocation.device).engine, allocation.address,
                        state.record_sites ? state.site(current_operation()) : 0);
    tell_profiler(allocation, false);
    state.count_events(2);
  }
  disown(allocation);
}

at::DataPtr take_memory(std::size_t size) { return device_allocator()->allocate(size); }

void empty_cache(c10::DeviceIndex index) {
  const Runtime& state = runtime();
  state.engines->empty_cache(state.device(index).engine, {0, 0});
}

std::size_t largest_request(c10::DeviceIndex index) {
  const Runtime& state = runtime();
  plimsoll_engine* const engine = state.device(index).engine;
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  state.engines->memory_info(engine, &free, &total);
  return std::max(free, state.engines->largest_free_block(engine));
}

}  // namespace plimsoll::simulated
