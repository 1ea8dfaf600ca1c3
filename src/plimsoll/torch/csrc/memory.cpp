#include "memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "runtime.h"

namespace plimsoll::simulated {
namespace {

void release(void* context) {
  const auto* const allocation = static_cast<Allocation*>(context);
  Runtime& state = runtime();
  if (!state.is_over) {
    const CurrentOperation& operation = current_operation();
    state.api->free(state.device(allocation->device).engine, allocation->address,
                    state.record_sites ? state.site(operation.name, operation.role) : 0);
  }
  delete allocation;
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    Runtime& state = runtime();
    const c10::DeviceIndex index = state.current_device();
    const c10::Device device(c10::DeviceType::CUDA, index);
    if (size == 0) return {nullptr, nullptr, &release, device};
    const CurrentOperation& operation = current_operation();
    std::array<char, 2048> message{};
    std::uint64_t address = 0;
    const int status = state.api->malloc(
        state.device(index).engine, size, static_cast<std::uint64_t>(state.current_stream(index)),
        state.site(operation.name, operation.role), &address, message.data(), message.size());
    TORCH_CHECK_WITH(OutOfMemoryError, status != PLIMSOLL_OUT_OF_MEMORY, message.data());
    TORCH_CHECK(status == PLIMSOLL_SUCCESS, message.data());
    auto* const allocation =
        new Allocation{address, size, index, state.next_serial(index), nullptr, true};
    return {reinterpret_cast<void*>(address), allocation, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

// PyTorch's pool of pinned memory hands out powers of two and keeps what is freed.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (size == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    const std::size_t rounded = std::bit_ceil(size);
    const std::lock_guard lock(mutex_);
    void* memory = nullptr;
    if (const auto cached = free_.find(rounded); cached != free_.end()) {
      memory = cached->second;
      free_.erase(cached);
    } else {
      memory = take(rounded);
    }
    live_.emplace(memory, rounded);
    ++statistics_.requests;
    statistics_.active_bytes += rounded;
    statistics_.active_peak = std::max(statistics_.active_peak, statistics_.active_bytes);
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  bool owns(const void* address) {
    const std::lock_guard lock(mutex_);
    auto after = live_.upper_bound(const_cast<void*>(address));
    if (after == live_.begin()) return false;
    --after;
    const auto* const first = static_cast<const std::byte*>(after->first);
    return static_cast<const std::byte*>(address) < first + after->second;
  }

  PinnedStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

  void empty() {
    const std::lock_guard lock(mutex_);
    const Runtime& state = runtime();
    for (const auto& [size, memory] : free_) {
      const auto account = accounts_.find(memory);
      state.api->deallocate_host(state.device(0).engine, account->second);
      accounts_.erase(account);
      ::munmap(memory, size);
      statistics_.reserved_bytes -= size;
    }
    free_.clear();
  }

  static PinnedAllocator& instance() {
    static auto* const allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  void* take(std::size_t size) {
    Runtime& state = runtime();
    std::uint64_t accounted = 0;
    const int status = state.api->allocate_host(state.device(0).engine, size, &accounted);
    TORCH_CHECK(status == PLIMSOLL_SUCCESS, "CUDA error: out of memory: no pinned memory of ", size,
                " bytes: half of the host's memory, which GPUs may share, is spent");
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "the host has no address space for ", size, " bytes");
    accounts_.emplace(memory, accounted);
    ++statistics_.driver_calls;
    statistics_.reserved_bytes += size;
    statistics_.reserved_peak = std::max(statistics_.reserved_peak, statistics_.reserved_bytes);
    return memory;
  }
  static void give_back(void* memory) {
    if (memory == nullptr) return;
    PinnedAllocator& pool = instance();
    const std::lock_guard lock(pool.mutex_);
    const auto place = pool.live_.find(memory);
    pool.free_.emplace(place->second, memory);
    ++pool.statistics_.releases;
    pool.statistics_.active_bytes -= place->second;
    pool.live_.erase(place);
  }

  std::mutex mutex_;
  std::map<void*, std::size_t> live_;
  std::multimap<std::size_t, void*> free_;
  std::map<void*, std::uint64_t> accounts_;  // the engine's address for each
  PinnedStatistics statistics_;
};

}  // namespace

c10::Allocator* device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

c10::Allocator* pinned_allocator() { return &PinnedAllocator::instance(); }

bool is_pinned(const void* address) { return PinnedAllocator::instance().owns(address); }

PinnedStatistics pinned_statistics() { return PinnedAllocator::instance().statistics(); }
void empty_pinned_pool() { PinnedAllocator::instance().empty(); }

Allocation* allocation_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& pointer = storage.data_ptr();
  return pointer.get_deleter() == &release ? static_cast<Allocation*>(pointer.get_context())
                                           : nullptr;
}

Allocation* allocation_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? allocation_of(*tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

at::DataPtr take_memory(std::size_t size) { return device_allocator()->allocate(size); }

}  // namespace plimsoll::simulated
