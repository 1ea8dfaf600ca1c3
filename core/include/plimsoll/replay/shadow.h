// What PyTorch's allocator would have come to, while a program runs on another one.
//
// The events of the live allocator are replayed through PyTorch's rules on a simulated device, by a
// thread of its own, a bounded number of events behind. Requests, frees and the waits of frees are
// the program's, and are replayed; what the live allocator did with its segments is not. A program
// is taken as it comes: what was allocated before the first event is ignored, and where the events
// contradict each other the shadow stops and says so. It never fails its caller.
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
  std::uint64_t events = 0;  // requests, frees and completed frees taken into account
  Bytes peak_reserved = 0;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  // The first request that fails here, as PyTorch reports it. If the program was served, nothing
  // after it is known.
  std::optional<OutOfMemoryReport> first_failure;
  std::string stopped;  // why nothing more is known, if it is for another reason
};

class Shadow {
 public:
  // A device of `device_memory` bytes that only this program uses.
  Shadow(Bytes device_memory, const AllocatorConfig& config, TorchVersion version, int device,
         std::size_t batch = 1 << 14);
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  ~Shadow();

  // From any thread. Waits only when a whole batch is not replayed yet.
  void add(const TraceEvent& event) noexcept;
  // What the program told its allocator to do besides: an emptied cache, a limit.
  void apply(std::function<void(NativeAllocator&)> change);

  // As of all that was added so far.
  [[nodiscard]] ShadowResult result();

 private:
  // Events, and the changes that go before some of them.
  struct Batch {
    std::vector<TraceEvent> events;
    std::vector<std::pair<std::size_t, std::function<void(NativeAllocator&)>>> changes;
  };
  enum class State : std::uint8_t { live, freed };

  // Nothing more can be known.
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
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Batch filling_;
  Batch replaying_;  // the thread's own while `is_replaying_`
  bool is_replaying_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace plimsoll
