// An allocator for PyTorch's pinned memory. It takes the memory from the process's pool of
// page-locked memory. It serves `pin_memory()`, including a DataLoader's pinned batches.
//
// Settings of PyTorch's own pinned allocator have no effect: pinned_use_cuda_host_register,
// pinned_reserve_segment_size_mb, pinned_use_background_threads.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "device.h"

namespace plimsoll::live {

class HostAllocator final : public at::HostAllocator {
 public:
  // `original` is PyTorch's own allocator, which still has to free the blocks that it allocated.
  HostAllocator(at::HostAllocator* original, OpenEngine open) : original_(original), open_(open) {}

  c10::DataPtr allocate(size_t size) override;
  void copy_data(void* destination, const void* source, size_t size) const override;
  bool record_event(void* pointer, void* context, c10::Stream stream) override;
  void empty_cache() override;
  // Returns the statistics of this allocator's blocks. `bucket_allocation`, which counts the
  // driver's allocations by size, stays 0.
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  // Since version 2.10, PyTorch calls these functions for the memory pools of CUDA graphs. They are
  // not marked `override`, because the base class of older versions does not have them.
  using Filter = std::function<bool(c10::Stream)>;
  virtual void begin_allocate_to_pool(MempoolId_t pool, Filter filter);
  virtual void end_allocate_to_pool(MempoolId_t pool);
  virtual void release_pool(MempoolId_t pool);

 private:
  plimsoll_engine* engine(DeviceIndex index);
  plimsoll_engine* any_engine();
  [[nodiscard]] MempoolId_t pool_of_request();

  at::HostAllocator* original_;
  OpenEngine open_;
  std::array<std::atomic<plimsoll_engine*>, C10_COMPILE_TIME_MAX_GPUS> engines_{};
  std::atomic<plimsoll_engine*> any_engine_ = nullptr;

  std::atomic<int> capture_count_ = 0;
  std::mutex captures_mutex_;
  std::vector<std::pair<MempoolId_t, Filter>> captures_;
};

// Replaces PyTorch's pinned allocator if this version of PyTorch allows it.
void install_host_allocator(OpenEngine open);

}  // namespace plimsoll::live
