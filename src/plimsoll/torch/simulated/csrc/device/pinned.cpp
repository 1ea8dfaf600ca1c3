#include "device/pinned.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using DeviceStream = std::pair<c10::DeviceIndex, c10::StreamId>;

// Returns an iterator to the range that contains an address; the end iterator if there is none.
template <typename Ranges>
auto within(Ranges& ranges, const void* address) {
  auto after = ranges.upper_bound(const_cast<void*>(address));
  if (after == ranges.begin()) return ranges.end();
  --after;
  const auto* const first = static_cast<const std::byte*>(after->first);
  return static_cast<const std::byte*>(address) < first + after->second.size ? after : ranges.end();
}

// Estimates how many bytes the process has written in ranges of memory. A range is given by its
// start and its size. The function looks up some pages of each range in /proc/self/pagemap. Pages
// that were only read do not count, because they all share one page of zeros.
std::uint64_t written_bytes(const std::vector<std::pair<const void*, std::size_t>>& ranges) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kMostPages = 256;  // the most pages to look up
  constexpr std::size_t kLeastOfEach = 4;
  constexpr std::uint64_t kOfThisProcessAlone = std::uint64_t{1} << 56;
  std::size_t total = 0;
  for (const auto& [begin, size] : ranges) total += size;
  const int map = total == 0 ? -1 : ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (map < 0) return 0;
  double written = 0;
  for (const auto& [begin, size] : ranges) {
    const std::size_t share = size / std::max<std::size_t>(total / kMostPages, 1);
    const std::size_t asked = std::min(std::max(share, kLeastOfEach), (size + kPage - 1) / kPage);
    std::size_t found = 0;
    for (std::size_t i = 0; i < asked; ++i) {
      const std::size_t offset = size / asked * i + size / asked / 2;
      const auto page = (reinterpret_cast<std::uintptr_t>(begin) + offset) / kPage;
      std::uint64_t entry = 0;
      const auto place = static_cast<off_t>(page * sizeof entry);
      if (::pread(map, &entry, sizeof entry, place) != sizeof entry) continue;
      if ((entry & kOfThisProcessAlone) != 0) ++found;
    }
    written += static_cast<double>(size) * static_cast<double>(found) / static_cast<double>(asked);
  }
  ::close(map);
  return static_cast<std::uint64_t>(written);
}

// PyTorch's pool of pinned memory. The pool rounds sizes up to powers of two. It caches a freed
// block once no copy uses the block any more. PyTorch's settings give the largest size that is
// rounded and the largest that is cached (ATen/core/CachingHostAllocator.h).
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (size == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    const std::lock_guard lock(mutex_);
    const bool is_rounded = size <= limits_.rounded && size <= limits_.cached;
    std::size_t rounded = is_rounded ? std::bit_ceil(size) : size;
    reclaim();
    void* memory = nullptr;
    // PyTorch keeps one list of free blocks for each power of two. A request for `size` bytes
    // searches only the list of bit_ceil(size).
    const auto cached = free_.lower_bound(rounded);
    if (cached != free_.end() && cached->first <= std::bit_ceil(size)) {
      std::tie(rounded, memory) = *cached;
      free_.erase(cached);
    } else {
      memory = take(rounded);
    }
    live_.emplace(memory, Block{rounded, size, {}});
    statistics_.active_requests.increase(1);
    statistics_.active_bytes.increase(rounded);
    statistics_.asked_bytes.increase(size);
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  bool owns(const void* address) {
    const std::lock_guard lock(mutex_);
    return within(live_, address) != live_.end() ||
           within(registered_, address) != registered_.end();
  }

  void note_use(const void* address, DeviceStream stream) {
    const std::lock_guard lock(mutex_);
    if (const auto place = within(live_, address); place != live_.end()) {
      place->second.streams.insert(stream);
    }
  }

  int register_memory(void* address, std::size_t size) {
    if (address == nullptr || size == 0) return kInvalidValue;
    const std::lock_guard lock(mutex_);
    if (within(registered_, address) != registered_.end()) return kAlreadyRegistered;
    const Runtime& state = runtime();
    std::uint64_t accounted = 0;
    if (state.gpus->allocate_host(state.device(0).gpu, size, &accounted) != PLIMSOLL_SUCCESS) {
      return kMemoryAllocation;
    }
    registered_.emplace(address, Registered{size, accounted});
    return 0;
  }

  int unregister_memory(void* address) {
    const std::lock_guard lock(mutex_);
    const auto place = registered_.find(address);
    if (place == registered_.end()) return kNotRegistered;
    const Runtime& state = runtime();
    state.gpus->deallocate_host(state.device(0).gpu, place->second.accounted);
    registered_.erase(place);
    return 0;
  }

  PinnedStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

  void reset_statistics(bool peaks) {
    const std::lock_guard lock(mutex_);
    for (Counter* const counter :
         {&statistics_.allocations, &statistics_.active_requests, &statistics_.allocated_bytes,
          &statistics_.active_bytes, &statistics_.asked_bytes}) {
      if (peaks) {
        counter->peak = counter->current;
      } else {
        counter->allocated = counter->freed = 0;
      }
    }
  }

  void empty() {
    const std::lock_guard lock(mutex_);
    reclaim();
    for (const auto& [size, memory] : free_) destroy(memory, size);
    free_.clear();
  }

  void limit(PinnedLimits limits) {
    const std::lock_guard lock(mutex_);
    limits_ = limits;
  }

  std::uint64_t written_bytes() {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<const void*, std::size_t>> ranges;
    for (const auto& [memory, block] : live_) ranges.emplace_back(memory, block.size);
    for (const auto& [size, memory] : free_) ranges.emplace_back(memory, size);
    for (const Waiting& waiting : waiting_) ranges.emplace_back(waiting.memory, waiting.size);
    return simulated::written_bytes(ranges);
  }
  std::uint64_t registered_written_bytes() {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<const void*, std::size_t>> ranges;
    for (const auto& [address, registered] : registered_) {
      ranges.emplace_back(address, registered.size);
    }
    return simulated::written_bytes(ranges);
  }

  static PinnedAllocator& instance() {
    static auto* const allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  // CUDA's error codes.
  static constexpr int kInvalidValue = 1;
  static constexpr int kMemoryAllocation = 2;
  static constexpr int kAlreadyRegistered = 712;
  static constexpr int kNotRegistered = 713;

  struct Block {
    std::size_t size = 0;
    std::size_t asked = 0;
    std::set<DeviceStream> streams;  // the streams whose copies use the block
  };
  struct Event {
    c10::DeviceIndex device = 0;
    std::uint64_t number = 0;
  };
  struct Waiting {
    void* memory = nullptr;
    std::size_t size = 0;
    std::size_t asked = 0;
    std::vector<Event> events;
  };
  struct Registered {
    std::size_t size = 0;
    std::uint64_t accounted = 0;  // the address under which the simulated driver counts the memory
  };

  void* take(std::size_t size) {
    Runtime& state = runtime();
    // Pinned memory needs a context of any device. If no device has a context, the current device
    // gets one.
    const bool has_context = std::any_of(state.devices.begin(), state.devices.end(),
                                         [](const Device& each) { return each.is_used.load(); });
    if (!has_context) state.use(state.current_device());
    std::uint64_t accounted = 0;
    const int status = state.gpus->allocate_host(state.device(0).gpu, size, &accounted);
    TORCH_CHECK(status == PLIMSOLL_SUCCESS, "CUDA error: out of memory: no pinned memory of ", size,
                " bytes: half of the host's memory, which GPUs may share, is spent; --host-memory "
                "simulates a host with more");
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "the host has no address space for ", size, " bytes");
    accounts_.emplace(memory, accounted);
    statistics_.allocations.increase(1);
    statistics_.allocated_bytes.increase(size);
    return memory;
  }

  static void give_back(void* memory) {
    if (memory == nullptr) return;
    PinnedAllocator& pool = instance();
    const std::lock_guard lock(pool.mutex_);
    const auto node = pool.live_.extract(memory);
    const Block& block = node.mapped();
    const Runtime& state = runtime();
    if (block.streams.empty() || state.is_over) {
      pool.keep(memory, block.size, block.asked);
      return;
    }
    Waiting waiting{memory, block.size, block.asked, {}};
    for (const auto& [device, stream] : block.streams) {
      Event& event = waiting.events.emplace_back(Event{device, 0});
      state.gpus->record_event(state.device(device).gpu, static_cast<std::uint64_t>(stream),
                               &event.number);
    }
    pool.waiting_.push_back(std::move(waiting));
  }

  void keep(void* memory, std::size_t size, std::size_t asked) {
    if (size > limits_.cached) {
      destroy(memory, size);
    } else {
      free_.emplace(size, memory);
    }
    statistics_.active_requests.decrease(1);
    statistics_.active_bytes.decrease(size);
    statistics_.asked_bytes.decrease(asked);
  }

  void destroy(void* memory, std::size_t size) {
    const Runtime& state = runtime();
    const auto account = accounts_.find(memory);
    state.gpus->deallocate_host(state.device(0).gpu, account->second);
    accounts_.erase(account);
    ::munmap(memory, size);
    statistics_.allocations.decrease(1);
    statistics_.allocated_bytes.decrease(size);
  }

  // Moves freed blocks to the cache once their copies are done. Goes through the blocks in
  // the order in which they were freed, and stops at the first block that a copy still uses.
  void reclaim() {
    const plimsoll_device_api& gpus = *runtime().gpus;
    const auto is_done = [&](const Event& event) {
      return gpus.query_event(runtime().device(event.device).gpu, event.number) == PLIMSOLL_SUCCESS;
    };
    while (!waiting_.empty()) {
      const Waiting& oldest = waiting_.front();
      if (!std::all_of(oldest.events.begin(), oldest.events.end(), is_done)) return;
      for (const Event& event : oldest.events) {
        gpus.destroy_event(runtime().device(event.device).gpu, event.number);
      }
      keep(oldest.memory, oldest.size, oldest.asked);
      waiting_.pop_front();
    }
  }

  std::mutex mutex_;
  std::map<void*, Block> live_;
  std::deque<Waiting> waiting_;
  std::multimap<std::size_t, void*> free_;
  std::map<void*, Registered> registered_;
  // Maps each block to the address under which the simulated driver counts the block's memory.
  std::map<void*, std::uint64_t> accounts_;
  PinnedStatistics statistics_;
  PinnedLimits limits_;
};

}  // namespace

c10::Allocator* pinned_allocator() { return &PinnedAllocator::instance(); }

bool is_pinned(const void* address) { return PinnedAllocator::instance().owns(address); }

void note_pinned_use(const void* address, c10::DeviceIndex device, c10::StreamId stream) {
  PinnedAllocator::instance().note_use(address, {device, stream});
}

int pin(void* address, std::size_t size) {
  return PinnedAllocator::instance().register_memory(address, size);
}
int unpin(void* address) { return PinnedAllocator::instance().unregister_memory(address); }

void Counter::increase(std::size_t amount) {
  current += static_cast<std::int64_t>(amount);
  allocated += static_cast<std::int64_t>(amount);
  peak = std::max(peak, current);
}

void Counter::decrease(std::size_t amount) {
  current -= static_cast<std::int64_t>(amount);
  freed += static_cast<std::int64_t>(amount);
}

PinnedStatistics pinned_statistics() { return PinnedAllocator::instance().statistics(); }
void reset_pinned_statistics(bool peaks) { PinnedAllocator::instance().reset_statistics(peaks); }
void limit_pinned(PinnedLimits limits) { PinnedAllocator::instance().limit(limits); }
void empty_pinned_pool() { PinnedAllocator::instance().empty(); }
std::uint64_t pinned_written_bytes() { return PinnedAllocator::instance().written_bytes(); }
std::uint64_t registered_written_bytes() {
  return PinnedAllocator::instance().registered_written_bytes();
}

}  // namespace plimsoll::simulated
