// A custom pool takes its memory from an allocator that the user gives
// (torch.cuda.MemPool(allocator=...)). This class remembers the custom pools, and decides which
// requests go to a custom pool. PyTorch's own allocator serves these requests.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "versions.h"

namespace plimsoll::live {

class CustomPools {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  // Returns whether a custom pool ever existed: PyTorch's own allocator may then hold memory too.
  [[nodiscard]] bool any() const { return any_.load(std::memory_order_relaxed); }

  void add(DeviceIndex device, MempoolId_t pool) {
    const std::scoped_lock lock(mutex_);
    pools_.emplace(device, pool);
    any_ = true;
  }
  [[nodiscard]] bool contains(DeviceIndex device, MempoolId_t pool) const {
    if (!any()) return false;
    const std::scoped_lock lock(mutex_);
    return pools_.contains({device, pool});
  }

  void begin(DeviceIndex device, MempoolId_t pool, Filter filter) {
    const std::scoped_lock lock(mutex_);
    begun_.push_back({device, pool, std::move(filter)});
  }
  void end(DeviceIndex device, MempoolId_t pool) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(begun_,
                  [&](const Begun& begun) { return begun.device == device && begun.pool == pool; });
  }
  [[nodiscard]] bool take(DeviceIndex device, cudaStream_t stream) const {
    const std::scoped_lock lock(mutex_);
    for (const auto& begun : begun_) {
      if (begun.device == device && begun.filter(stream)) return true;
    }
    return false;
  }

  void set_use_on_oom(DeviceIndex device, MempoolId_t pool, bool use) {
    const std::scoped_lock lock(mutex_);
    if (use) {
      last_resorts_.emplace(device, pool);
    } else {
      last_resorts_.erase({device, pool});
    }
  }
  // Returns whether a custom pool with use_on_oom may serve a request that would otherwise fail.
  [[nodiscard]] bool is_last_resort(DeviceIndex device) const {
    const std::scoped_lock lock(mutex_);
    for (const auto& [owner, pool] : last_resorts_) {
      if (owner == device) return true;
    }
    return false;
  }

 private:
  using Key = std::pair<DeviceIndex, MempoolId_t>;
  struct Begun {
    DeviceIndex device;
    MempoolId_t pool;
    Filter filter;
  };

  std::atomic<bool> any_ = false;
  mutable std::mutex mutex_;  // protects the members below
  std::set<Key> pools_;
  std::set<Key> last_resorts_;
  std::vector<Begun> begun_;
};

}  // namespace plimsoll::live
