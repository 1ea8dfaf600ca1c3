// The differences between PyTorch versions in the allocator's interface. No other file knows them.
// `VersionedAllocator` overrides the functions with the signatures of the running version. Each
// override calls a virtual function whose signature is the same for all versions; `Allocator`
// implements that function. `Original` does the reverse: it calls PyTorch's own allocator with the
// signature of the running version.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 9)
#error "PyTorch 2.9 or later is needed"
#endif
#define PLIMSOLL_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace plimsoll::live {

namespace torch_allocator = c10::cuda::CUDACachingAllocator;

using c10::DeviceIndex;
using c10::MempoolId_t;
using torch_allocator::CreateContextFn;
using torch_allocator::RecordContext;
using torch_allocator::SnapshotInfo;
using torch_allocator::TraceEntry;
using AnnotationEntry = decltype(SnapshotInfo::external_annotations)::value_type;
using SegmentInfo = decltype(SnapshotInfo::segments)::value_type;
using BlockInfo = decltype(SegmentInfo::blocks)::value_type;
using Context = std::shared_ptr<c10::GatheredContext>;
using Tracker = torch_allocator::AllocatorTraceTracker;

#if PLIMSOLL_TORCH_AT_LEAST(11)
using CustomAllocator = std::shared_ptr<torch_allocator::CUDAAllocator>;
#else
using CustomAllocator = torch_allocator::CUDAAllocator*;
#endif

#if PLIMSOLL_TORCH_AT_LEAST(12)
using OomRejectionObserver = torch_allocator::OomRejectionObserver;
#else
using OomRejectionObserver = std::function<void(int64_t, size_t, size_t, size_t)>;
#endif

// All arguments that recordHistory has in one version or another.
struct HistoryRequest {
  bool is_enabled = false;
  CreateContextFn recorder = nullptr;
  size_t max_entries = 1;
  RecordContext when = RecordContext::NEVER;
  bool clears = true;
  std::vector<std::string> skipped_actions;
};

class VersionedAllocator : public torch_allocator::CUDAAllocator {
 public:
  using CUDAAllocator::recordStream;  // keeps the overload that takes a c10::Stream

  virtual SnapshotInfo take_snapshot(MempoolId_t pool, bool includes_traces) = 0;
  virtual void record(const HistoryRequest& request) = 0;
  virtual void use_pool(DeviceIndex device, MempoolId_t pool, CustomAllocator allocator) = 0;
  virtual void set_use_on_oom(DeviceIndex device, MempoolId_t pool, bool use) = 0;
  virtual void set_no_split(DeviceIndex device, MempoolId_t pool) = 0;
  virtual std::vector<torch_allocator::SegmentInfo> expandable_segments(DeviceIndex device) = 0;
  virtual void begin_graph_capture(DeviceIndex device) = 0;
  virtual void end_graph_capture(DeviceIndex device) = 0;
  virtual void set_metadata(const std::string& metadata) = 0;
  virtual std::string metadata() = 0;
  virtual Context context_of(const void* pointer) = 0;
  virtual void add_rejection_observer(OomRejectionObserver observer) = 0;
  virtual c10::DataPtr allocate_at(size_t size, void* pointer) = 0;
  virtual void note_of_memory(const void* pointer, const std::string& text) = 0;

#if PLIMSOLL_TORCH_AT_LEAST(11)
  SnapshotInfo snapshot(MempoolId_t pool, bool includes_traces) final {
    return take_snapshot(pool, includes_traces);
  }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when,
                     bool clears, const std::vector<std::string>& skipped) final {
    record({enabled, recorder, max_entries, when, clears, skipped});
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) final {
    set_use_on_oom(device, pool, use);
  }
#else
  SnapshotInfo snapshot(MempoolId_t pool) final { return take_snapshot(pool, true); }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when,
                     bool clears) final {
    record({enabled, recorder, max_entries, when, clears, {}});
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) final {
    set_use_on_oom(device, pool, true);
  }
#endif
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CustomAllocator allocator) final {
    use_pool(device, pool, std::move(allocator));
  }
#if PLIMSOLL_TORCH_AT_LEAST(10)
  void setNoSplit(DeviceIndex device, MempoolId_t pool) final { set_no_split(device, pool); }
  std::vector<torch_allocator::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex device) final {
    std::vector<torch_allocator::StreamSegmentSize> sizes;
    for (const auto& segment : expandable_segments(device)) {
      sizes.emplace_back(static_cast<cudaStream_t>(segment.stream), !segment.is_large,
                         segment.total_size);
    }
    return sizes;
  }
  void setUserMetadata(const std::string& text) final { set_metadata(text); }
  std::string getUserMetadata() final { return metadata(); }
#endif
#if PLIMSOLL_TORCH_AT_LEAST(12)
  Context getContextForPointer(const void* pointer) final { return context_of(pointer); }
  void attachOomRejectionObserver(OomRejectionObserver observer) final {
    add_rejection_observer(std::move(observer));
  }
#endif
#if PLIMSOLL_TORCH_AT_LEAST(13)
  c10::DataPtr allocateWithAddress(size_t size, void* pointer) final {
    return allocate_at(size, pointer);
  }
  void markCaptureBegin(DeviceIndex device) final { begin_graph_capture(device); }
  void markCaptureEnd(DeviceIndex device) final { end_graph_capture(device); }
#endif
#if PLIMSOLL_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() final { return true; }
  void annotateMemory(const void* pointer, const std::string& text) final {
    note_of_memory(pointer, text);
  }
#endif
};

// Calls PyTorch's own allocator. The functions of this class have the same signatures under every
// PyTorch version.
class Original {
 public:
  explicit Original(torch_allocator::CUDAAllocator* allocator) : allocator_(allocator) {}
  torch_allocator::CUDAAllocator* operator->() const { return allocator_; }

  [[nodiscard]] SnapshotInfo snapshot(MempoolId_t pool) const { return allocator_->snapshot(pool); }
  void record(const HistoryRequest& request) const {
    allocator_->recordHistory(request.is_enabled, request.recorder, request.max_entries,
                              request.when, request.clears
#if PLIMSOLL_TORCH_AT_LEAST(11)
                              ,
                              request.skipped_actions
#endif
    );
  }
  void set_use_on_oom(DeviceIndex device, MempoolId_t pool, bool use) const {
#if PLIMSOLL_TORCH_AT_LEAST(11)
    allocator_->setUseOnOOM(device, pool, use);
#else
    if (use) allocator_->setUseOnOOM(device, pool);
#endif
  }
  void mark_capture([[maybe_unused]] DeviceIndex device, [[maybe_unused]] bool begins) const {
#if PLIMSOLL_TORCH_AT_LEAST(13)
    begins ? allocator_->markCaptureBegin(device) : allocator_->markCaptureEnd(device);
#endif
  }
  void note_of_memory([[maybe_unused]] const void* pointer,
                      [[maybe_unused]] const std::string& text) const {
#if PLIMSOLL_TORCH_AT_LEAST(14)
    allocator_->annotateMemory(pointer, text);
#endif
  }
  void set_no_split([[maybe_unused]] DeviceIndex device, [[maybe_unused]] MempoolId_t pool) const {
#if PLIMSOLL_TORCH_AT_LEAST(10)
    allocator_->setNoSplit(device, pool);
#endif
  }

 private:
  torch_allocator::CUDAAllocator* allocator_;
};

// Makes an entry of PyTorch's history, in the form of the running version.
inline TraceEntry make_entry(TraceEntry::Action action, DeviceIndex device, size_t address,
                             size_t size, void* stream, MempoolId_t pool, int64_t time_us,
                             Context context, std::string compile_context,
                             [[maybe_unused]] const std::string& metadata) {
  TraceEntry entry(action, device, address, size, static_cast<cudaStream_t>(stream), pool, 0,
                   std::move(context), std::move(compile_context)
#if PLIMSOLL_TORCH_AT_LEAST(10)
                                           ,
                   metadata
#endif
  );
  entry.time_.t_ = time_us;
  return entry;
}

// Marks a history entry as caused by the allocator itself, not by the program.
inline void set_internal([[maybe_unused]] TraceEntry& entry, [[maybe_unused]] const char* why) {
#if PLIMSOLL_TORCH_AT_LEAST(15)
  entry.internal_metadata_ = why;
#elif PLIMSOLL_TORCH_AT_LEAST(13)
  entry.user_metadata_ = why;
#endif
}

// Numbers segments by `registration_counter` in the order in which they were made, as PyTorch's own
// allocator does. Ranks that make the same segments then register the segments with NCCL in the
// same order, even if the addresses differ between ranks.
//
// `segments` is sorted by address. `numbers` has a number for each segment; a later segment has a
// higher number. All ranges of an expandable segment have the same number, so they are counted in
// the order of their addresses.
inline void set_registrations([[maybe_unused]] std::vector<SegmentInfo>& segments,
                              [[maybe_unused]] const std::vector<uint64_t>& numbers) {
#if PLIMSOLL_TORCH_AT_LEAST(11)
  std::vector<size_t> order(segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return numbers[i]; });
  for (size_t i = 0; i < order.size(); ++i) {
    segments[order[i]].registration_counter = static_cast<int32_t>(i);
  }
#endif
}

inline void set_rejections([[maybe_unused]] c10::CachingDeviceAllocator::DeviceStats& statistics,
                           [[maybe_unused]] int64_t count) {
#if PLIMSOLL_TORCH_AT_LEAST(12)
  statistics.num_oom_rejections = count;
#endif
}

}  // namespace plimsoll::live
