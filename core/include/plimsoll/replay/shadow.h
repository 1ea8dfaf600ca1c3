// Runs beside a program that uses another allocator (the "live" one), and computes how much memory
// PyTorch's allocator would have reserved for this program.
//
// A separate thread replays the live allocator's events through PyTorch's rules on a simulated
// device, a bounded number of events behind. It replays the program's requests, its frees and the
// completion of delayed frees, but not the live allocator's segments. The shadow can start at any
// time: it ignores blocks allocated before its first event. If the events contradict each other,
// the shadow stops and `result` gives the reason. The program itself gets no error.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plimsoll/allocator/native/native.h"
#include "plimsoll/base/address_map.h"
#include "plimsoll/replay/replayer.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

struct ShadowResult {
  std::uint64_t events = 0;  // number of replayed requests, frees and completed frees
  Bytes peak_reserved = 0;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  // PyTorch's report of the first request that fails in the replay. If the live allocator served
  // the request, the events after it are not replayed.
  std::optional<OutOfMemoryReport> first_failure;
  std::string stopped;  // why the shadow stopped, unless a failed request is the reason
};

class Shadow {
 public:
  // Simulates a device that has `device_memory` bytes and that only this program uses.
  Shadow(Bytes device_memory, const AllocatorConfig& config, TorchVersion version, int device,
         std::size_t batch = 1 << 14);
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  ~Shadow();

  // Adds an event, from any thread. Waits only if the batch being filled is full while the shadow's
  // thread still replays the batch before it.
  void add(const TraceEvent& event) noexcept;
  // Applies a call of the program that is neither a request nor a free, such as empty_cache or a
  // new limit.
  void apply(std::function<void(NativeAllocator&)> change);

  // Waits until all events added so far are replayed, and returns the result.
  [[nodiscard]] ShadowResult result();

 private:
  // `events` holds requests and frees, in order. `changes` holds the program's other calls. The
  // number beside a call is the index of the event that follows the call.
  struct Batch {
    std::vector<TraceEvent> events;
    std::vector<std::pair<std::size_t, std::function<void(NativeAllocator&)>>> changes;
  };
  enum class State : std::uint8_t { live, freed };

  // Returns whether later events cannot change the result.
  [[nodiscard]] bool is_over() const { return !stopped_.empty() || replayer_.stopped(); }
  void run();
  void hand_over(std::unique_lock<std::mutex>& lock);
  void replay(const Batch& batch);
  void take(const TraceEvent& event);
  void feed(const TraceEvent& event);

  SimulatedHost host_{0};
  SimulatedDriver driver_;
  NativeAllocator allocator_;
  Replayer replayer_;
  AddressMap<State> known_;  // blocks that the replayer knows
  std::uint64_t events_ = 0;
  std::string stopped_;

  const std::size_t batch_size_;
  const int process_;
  std::mutex mutex_;  // protects the members below
  std::condition_variable changed_;
  Batch filling_;
  Batch replaying_;  // only the shadow's thread uses it while `is_replaying_`
  bool is_replaying_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace plimsoll
