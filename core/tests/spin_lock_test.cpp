// Tests the mutex that takes one byte of memory.

#include "plimsoll/base/spin_lock.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"

namespace plimsoll {

TEST(a_lock_lets_in_one_thread_at_a_time) {
  SpinLock lock;
  std::uint64_t count = 0;
  int inside = 0;
  bool was_crowded = false;
  constexpr std::uint64_t kThreads = 8;
  constexpr std::uint64_t kTurns = 20'000;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
        const std::lock_guard guard(lock);
        was_crowded |= ++inside > 1;
        ++count;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!was_crowded);
  CHECK_EQUAL(count, kThreads * kTurns);
}

TEST(who_waits_for_a_lock_for_long_gets_it) {
  SpinLock lock;
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  {
    const std::lock_guard guard(lock);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        const std::lock_guard waiting(lock);
        ++served;
      });
    }
    // Long enough for the waiting threads to go to sleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_EQUAL(served.load(), 0);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(served.load(), 4);
}

TEST(what_one_holder_of_a_lock_wrote_the_next_one_reads) {
  SpinLock lock;
  std::vector<int> written;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      const std::lock_guard guard(lock);
      written.push_back(i);
    }
  });
  std::size_t seen = 0;
  bool ordered = true;
  while (seen < 1000) {
    const std::lock_guard guard(lock);
    ordered = ordered && written.size() >= seen;
    for (; seen < written.size(); ++seen)
      ordered = ordered && written[seen] == static_cast<int>(seen);
  }
  other.join();
  CHECK(ordered);
}

}  // namespace plimsoll
