// A mutex of one word. Taken and given back it costs one atomic operation each when nobody else
// wants it; who must wait sleeps. Meets the needs of std::lock_guard.
#pragma once

#include <atomic>
#include <cstdint>

namespace plimsoll {

class Lock {
 public:
  void lock() {
    std::uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) wait();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) state_.notify_one();
  }

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kAwaited = 2;
  static constexpr int kSpins = 100;

  void wait() {
    for (int i = 0; i < kSpins; ++i) {
      std::uint32_t expected = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree &&
          state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) {
        return;
      }
    }
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) state_.wait(kAwaited);
  }

  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace plimsoll
