#include "recorder.h"

#include "history.h"

#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>

namespace plimsoll::live {

namespace {

std::atomic<const plimsoll_recorder_api*> recorder = nullptr;
std::atomic<plimsoll_event_buffer*> sink = nullptr;
thread_local uint32_t stack_of_request = 0;

int64_t clock_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1'000;
}

// A request's number is its stack's number, shifted left by three bits. The low three bits hold
// autograd's state. torch_events.py reads them.
constexpr uint32_t kRecords = 1, kInBackward = 2, kIsKnown = 4, kBits = 3;

Context number_stack() {
  const uint32_t stack = recorder.load(std::memory_order_acquire)->capture_stack();
  stack_of_request = stack << kBits | kIsKnown;
  if (c10::GradMode::is_enabled()) stack_of_request |= kRecords;
  if (torch::autograd::get_current_node()) stack_of_request |= kInBackward;
  return nullptr;  // PyTorch then keeps no stack of its own
}

bool ends_request(TraceEntry::Action action) {
  return action == TraceEntry::ALLOC || action == TraceEntry::OOM;
}

// Returns whether a request for memory causes events of this kind.
bool is_of_request(TraceEntry::Action action) {
  return ends_request(action) || action == TraceEntry::SEGMENT_ALLOC ||
         action == TraceEntry::SEGMENT_MAP;
}

// Returns an event's device. When PyTorch's own allocator takes a snapshot, it reports one event
// for each device, in order, but every such event names device 0
// (c10/cuda/CUDACachingAllocator.cpp). This function therefore counts these events to find the
// device of each. plimsoll's allocators name the right device.
DeviceIndex device_of(const TraceEntry& entry) {
  if (entry.action_ != TraceEntry::SNAPSHOT || torch_allocator::get()->name() != "native") {
    return entry.device_;
  }
  thread_local DeviceIndex next = 0;
  const DeviceIndex device = entry.device_ != 0 ? entry.device_ : next;
  next = static_cast<DeviceIndex>((device + 1) % c10::cuda::device_count());
  return device;
}

void take_entry(const TraceEntry& entry) {
  auto* const buffer = sink.load(std::memory_order_acquire);
  const bool is_known = static_cast<uint32_t>(entry.action_) <= PLIMSOLL_OOM;
  if (buffer == nullptr || !is_known) return;
  plimsoll_event event{};
  event.address = entry.addr_;
  event.size = entry.size_;
  event.stream = reinterpret_cast<uint64_t>(entry.stream_);
  event.pool = {entry.mempool_.first, entry.mempool_.second};
  event.time_us = clock_us();
  event.action = static_cast<uint32_t>(entry.action_);
  event.shared = History::shared_of_event();
  uint32_t stack = 0;
  if (is_of_request(entry.action_)) {
    stack = stack_of_request;
    if (ends_request(entry.action_)) stack_of_request = 0;
  }
  recorder.load(std::memory_order_acquire)->add(buffer, device_of(entry), &event, stack);
}

const std::vector<std::string>& all_actions() {
  static const std::vector<std::string> names = {
      "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap",  "snapshot",       "oom",
#if PLIMSOLL_TORCH_AT_LEAST(14)
      "annotate",
#endif
  };
  return names;
}

}  // namespace

void start_recording(const plimsoll_recorder_api* api, plimsoll_event_buffer* buffer, bool stacks) {
  TORCH_CHECK(api->version == PLIMSOLL_RECORDER_API_VERSION,
              "the cached bridge belongs to another build of plimsoll; delete it from the cache");
  recorder.store(api, std::memory_order_release);
  static std::once_flag once;
  std::call_once(once, [] { torch_allocator::get()->attachAllocatorTraceTracker(take_entry); });
  if (stacks) {
    Original(torch_allocator::get())
        .record({true, number_stack, 1, RecordContext::STATE, true, all_actions()});
  }
  sink.store(buffer, std::memory_order_release);
}

void stop_recording(bool gives_back_stacks) {
  sink.store(nullptr, std::memory_order_release);
  if (gives_back_stacks) {
    // When PyTorch's recording is switched off, PyTorch forgets the stack function a moment before
    // it stops calling the function. So plimsoll first makes PyTorch gather no stacks, and then
    // switches the recording off.
    Original(torch_allocator::get())
        .record({true, number_stack, 1, RecordContext::NEVER, true, all_actions()});
    Original(torch_allocator::get()).record({false, nullptr, 1, RecordContext::NEVER, true, {}});
  }
}

}  // namespace plimsoll::live

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

// Starts a recording. Returns 0 if that succeeded; otherwise the reason is in `problem`, cut at
// `capacity`.
PLIMSOLL_EXPORT int plimsoll_recording_start(const plimsoll_recorder_api* api,
                                             plimsoll_event_buffer* buffer, int stacks,
                                             char* problem, size_t capacity) {
  try {
    plimsoll::live::start_recording(api, buffer, stacks != 0);
    return 0;
  } catch (const c10::Error& error) {
    std::strncpy(problem, error.what_without_backtrace(), capacity - 1);
  } catch (const std::exception& error) {
    std::strncpy(problem, error.what(), capacity - 1);
  }
  return 1;
}

PLIMSOLL_EXPORT void plimsoll_recording_stop(int gives_back_stacks) {
  plimsoll::live::stop_recording(gives_back_stacks != 0);
}
