// PyTorch's CUDA allocator, implemented by plimsoll's engines.
//
// To serve a request, this class finds the current device and stream, and calls the device's
// engine. It takes no lock, searches no map and allocates nothing on the heap. The rest of this
// class translates between PyTorch's types and the engines'. Like PyTorch's own allocator, this
// class calls trackers for each event and observers for each failed request. It holds no lock
// during these calls.
//
// PyTorch's own allocator, the "original", still serves memory that does not come from an engine:
//
// - memory pools for which the user gave an allocator of their own (CustomPools);
// - requests while caching is switched off;
// - blocks that it allocated before this class was installed.
//
// The original also opens memory that other processes share through CUDA IPC handles.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "custom_pools.h"
#include "device.h"
#include "history.h"
#include "sharing.h"
#include "versions.h"

namespace plimsoll::live {

class Allocator final : public VersionedAllocator {
 public:
  Allocator(torch_allocator::CUDAAllocator* original, OpenEngine open);

  // Functions of c10::Allocator.
  c10::DataPtr allocate(size_t size) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t size) const override;

  // Functions of c10::DeviceAllocator.
  bool initialized() override { return device_count_ != 0; }
  void emptyCache(MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;

  // Functions of CUDAAllocator.
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* pointer) override { free(pointer); }
  void init(int device_count) override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void enable(bool value) override;
  [[nodiscard]] bool isEnabled() const override { return original_->isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t* largest) override;
  void* getBaseAllocation(void* pointer, size_t* size) override;

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<torch_allocator::AllocatorState> getCheckpointState(DeviceIndex device,
                                                                      MempoolId_t pool) override;
  torch_allocator::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<torch_allocator::AllocatorState> state) override;

  torch_allocator::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex accessed) override;
  cudaError_t memcpyAsync(void* destination, int destination_device, const void* source,
                          int source_device, size_t size, cudaStream_t stream,
                          bool p2p_enabled) override;

  bool isHistoryEnabled() override { return history_.is_enabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override;
  void pushCompileContext(std::string& text) override;
  void popCompileContext() override;
  void attachOutOfMemoryObserver(torch_allocator::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(Tracker tracker) override;
  std::string name() override { return "plimsoll"; }

  // Functions of VersionedAllocator.
  SnapshotInfo take_snapshot(MempoolId_t pool, bool includes_traces) override;
  void record(const HistoryRequest& request) override;
  void use_pool(DeviceIndex device, MempoolId_t pool, CustomAllocator allocator) override;
  void set_use_on_oom(DeviceIndex device, MempoolId_t pool, bool use) override;
  void set_no_split(DeviceIndex device, MempoolId_t pool) override;
  void begin_graph_capture(DeviceIndex device) override;
  void end_graph_capture(DeviceIndex device) override;
  std::vector<torch_allocator::SegmentInfo> expandable_segments(DeviceIndex device) override;
  void set_metadata(const std::string& text) override { History::set_metadata(text); }
  std::string metadata() override { return History::metadata(); }
  Context context_of(const void* pointer) override;
  void add_rejection_observer(OomRejectionObserver observer) override;
  c10::DataPtr allocate_at(size_t size, void* pointer) override;
  void note_of_memory(const void* pointer, const std::string& text) override;

  void free(void* pointer);
  // Takes over a GPU whose engine is already open, for example because another library uses it.
  // From now on PyTorch's statistics include the engine, and PyTorch's memory limit holds for the
  // engine.
  void adopt(DeviceIndex index);

 private:
  Device& device(DeviceIndex index);
  [[nodiscard]] DeviceIndex current_device() const;
  // Returns whether PyTorch's own allocator has to serve the calling thread's request.
  [[nodiscard]] bool is_original_asked(DeviceIndex index, cudaStream_t stream) const;
  void* malloc(Device& device, size_t size, cudaStream_t stream);
  uint64_t recover(Device& device, size_t size, cudaStream_t stream, int status);
  [[noreturn]] void throw_out_of_memory(Device& device, size_t size, const std::string& text);
  Device* owner(const void* pointer, plimsoll_place* place);
  Device* free_in_engine(uint64_t address);
  void note_first_block(const Device& device, const void* pointer);
  void report_to_profiler(Device& device, void* pointer, int64_t size_change);
  std::vector<SegmentInfo> segments(Device& device, MempoolId_t pool);
  void add_original(SnapshotInfo& snapshot, MempoolId_t pool, bool includes_traces) const;
  void watch();

  const Original original_;
  const OpenEngine open_;
  std::atomic<bool> is_enabled_;
  std::atomic<int> begun_pools_ = 0;  // the number of pools that now receive requests
  int device_count_ = 0;
  std::array<Device, C10_COMPILE_TIME_MAX_GPUS> devices_;
  CustomPools custom_pools_;
  History history_;
  Sharing sharing_;

  std::mutex observers_mutex_;  // protects the members below
  std::vector<torch_allocator::OutOfMemoryObserver> oom_observers_;
  std::vector<OomRejectionObserver> rejection_observers_;
  std::array<int64_t, C10_COMPILE_TIME_MAX_GPUS> rejections_seen_{};
};

// Returns plimsoll's allocator if PyTorch uses it; null before `install`.
Allocator* installed();

enum class Installation { done, wrong_table, memory_in_use };
Installation install(const plimsoll_engine_api* table, OpenEngine open);

}  // namespace plimsoll::live
