// A mutex of one byte for short critical sections in which two threads rarely meet. Locking costs
// one atomic operation. Unlocking costs a plain store, because it wakes no thread. A waiting thread
// polls, at first without a break, later with short sleeps. Meets the requirements of
// std::lock_guard.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace plimsoll {

class SpinLock {
 public:
  void lock() {
    if (!try_lock()) wait();
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  static constexpr int kLooks = 100;
  static constexpr std::chrono::microseconds kSleep{20};

  // Tells the core that this thread waits, so that another hardware thread of the core can run.
  static void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  void wait() {
    for (int looks = 0;; ++looks) {
      if (!held_.load(std::memory_order_relaxed) && try_lock()) return;
      if (looks < kLooks) {
        pause();
      } else {
        std::this_thread::sleep_for(kSleep);
      }
    }
  }

  std::atomic<bool> held_{false};
};

}  // namespace plimsoll
