// Tests sharded counters against plain counters.

#include "plimsoll/events/concurrent_statistics.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr auto kStats = {&Statistics::allocation, &Statistics::active, &Statistics::allocated_bytes,
                         &Statistics::active_bytes, &Statistics::requested_bytes};

void check_same(ConcurrentStatistics& counters, const Statistics& model) {
  Statistics read;
  counters.read(read);
  for (const auto stat : kStats) {
    const PoolStat& a = read.*stat;
    const PoolStat& b = model.*stat;
    CHECK(a.all == b.all && a.small_pool == b.small_pool && a.large_pool == b.large_pool);
  }
}

struct Live {
  std::size_t shard = 0;
  bool small = false;
  Bytes size = 0;
  Bytes requested = 0;
  bool pending = false;
};

Live random_block(Random& random, std::size_t shards) {
  const bool small = random.one_in(2);
  const Bytes requested = random.between(1, small ? 1_MiB : 40_MiB);
  return {static_cast<std::size_t>(random.below(shards)), small, round_up(requested, 512),
          requested, false};
}

}  // namespace

TEST(concurrent_statistics_of_one_thread_are_those_of_plain_counters) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    ConcurrentStatistics counters;
    std::vector<ConcurrentStatistics::Shard*> shards{&counters.add_shard()};
    Statistics model;
    std::vector<Live> live;
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t choice = random.below(1000);
      if (choice < 3 && shards.size() < 12) shards.push_back(&counters.add_shard());
      if (choice == 10) counters.reset_peak(), model.reset_peak();
      if (choice == 11) counters.reset_accumulated(), model.reset_accumulated();
      if (live.empty() || choice < (step / 300 % 2 == 0 ? 480U : 540U)) {
        const Live& block = live.emplace_back(random_block(random, shards.size()));
        shards[block.shard]->allocate(block.small, block.size, block.requested);
        model.allocation.increase(block.small, 1);
        model.active.increase(block.small, 1);
        model.allocated_bytes.increase(block.small, block.size);
        model.active_bytes.increase(block.small, block.size);
        model.requested_bytes.increase(block.small, block.requested);
      } else {
        Live& block = random.pick(live);
        ConcurrentStatistics::Shard& shard = *shards[block.shard];
        const bool will_wait = !block.pending && random.one_in(4);
        if (!block.pending) {
          model.allocation.decrease(block.small, 1);
          model.allocated_bytes.decrease(block.small, block.size);
        }
        if (will_wait) {
          shard.request_free(block.small, block.size);
          block.pending = true;
        } else {
          if (block.pending) {
            shard.complete_free(block.small, block.size, block.requested);
          } else {
            shard.free(block.small, block.size, block.requested);
          }
          model.active.decrease(block.small, 1);
          model.active_bytes.decrease(block.small, block.size);
          model.requested_bytes.decrease(block.small, block.requested);
          std::swap(block, live.back());
          live.pop_back();
        }
      }
      // Reading raises the peak to the present sum. If the test read after every step, the reads
      // would hide peaks that the counters themselves miss.
      if (random.one_in(20)) check_same(counters, model);
    }
    check_same(counters, model);
  }
}

TEST(concurrent_statistics_see_a_peak_that_moves_from_shard_to_shard) {
  ConcurrentStatistics counters;
  constexpr Bytes kShards = 8;
  std::vector<ConcurrentStatistics::Shard*> shards;
  for (Bytes i = 0; i < kShards; ++i) shards.push_back(&counters.add_shard());
  for (ConcurrentStatistics::Shard* const shard : shards) shard->allocate(false, 10_MiB, 10_MiB);
  // In each round, `giver` frees its 10 MiB, the next shard allocates 11 MiB, and `giver` allocates
  // 10 MiB again. So the sum of all shards rises to 91 MiB.
  for (Bytes i = 0; i < 100; ++i) {
    ConcurrentStatistics::Shard& giver = *shards[i % kShards];
    giver.request_free(false, 10_MiB);
    giver.complete_free(false, 10_MiB, 10_MiB);
    shards[(i + 1) % kShards]->allocate(false, 11_MiB, 11_MiB);
    giver.allocate(false, 10_MiB, 10_MiB);
    ConcurrentStatistics::Shard& grown = *shards[(i + 1) % kShards];
    grown.request_free(false, 11_MiB);
    grown.complete_free(false, 11_MiB, 11_MiB);
  }
  Statistics read;
  counters.read(read);
  CHECK_EQUAL(read.allocated_bytes.all.current, static_cast<std::int64_t>(80_MiB));
  CHECK_EQUAL(read.allocated_bytes.all.peak, static_cast<std::int64_t>(91_MiB));
  CHECK_EQUAL(read.allocation.all.peak, 9);
}

// While no thread frees, the sum only grows, so the peak must equal the final sum. This must hold
// even though the shards take room from each other; a shard's room is its bound less its value. The
// threads allocate different numbers of blocks, so some still take room when others have ended.
TEST(concurrent_statistics_of_threads_that_only_allocate_have_an_exact_peak) {
  constexpr std::size_t kThreads = 5;
  ConcurrentStatistics counters;
  std::vector<ConcurrentStatistics::Shard*> shards;
  for (std::size_t i = 0; i < kThreads; ++i) shards.push_back(&counters.add_shard());
  std::int64_t peak_bytes = 0;
  std::int64_t peak_blocks = 0;
  for (std::size_t round = 0; round < 60; ++round) {
    std::array<Bytes, kThreads> counts{};
    std::int64_t blocks = 0;
    Random random(round);
    for (Bytes& count : counts) count = random.between(0, 600);
    for (const Bytes count : counts) blocks += static_cast<std::int64_t>(count);
    peak_blocks = std::max(peak_blocks, blocks);
    peak_bytes = std::max(peak_bytes, blocks * static_cast<std::int64_t>(2_MiB));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&shard = *shards[i], count = counts[i]] {
        for (Bytes n = 0; n < count; ++n) shard.allocate(false, 2_MiB, 2_MiB);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < kThreads; ++i) {
      for (Bytes n = 0; n < counts[i]; ++n) shards[i]->free(false, 2_MiB, 2_MiB);
    }
    // The statistics are read last, because a read raises the peak to at least the present total.
    Statistics read;
    counters.read(read);
    CHECK_EQUAL(read.allocation.all.current, 0);
    CHECK_EQUAL(read.allocation.all.peak, peak_blocks);
    CHECK_EQUAL(read.allocated_bytes.large_pool.peak, peak_bytes);
    CHECK_EQUAL(read.requested_bytes.all.peak, peak_bytes);
  }
}

// The threads allocate and free at the same time, so the test cannot know the exact peak. The sums
// must be exact. The peak must be at least the highest peak of a single thread, and at most the sum
// of all threads' peaks.
TEST(concurrent_statistics_of_many_threads_add_up) {
  constexpr std::size_t kThreads = 6;
  constexpr int kSteps = 20'000;
  constexpr Bytes kBase = 50_MiB;  // each thread holds this much until it ends
  ConcurrentStatistics counters;
  std::array<std::int64_t, kThreads> most{};
  std::array<std::int64_t, kThreads> left{};
  std::array<std::int64_t, kThreads> allocated{};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread, &shard = counters.add_shard()] {
      Random random(thread);
      std::vector<Live> live;
      std::int64_t current = 0;
      const auto allocate = [&](const Live& block) {
        shard.allocate(block.small, block.size, block.requested);
        current += static_cast<std::int64_t>(block.size);
        allocated[thread] += static_cast<std::int64_t>(block.size);
        most[thread] = std::max(most[thread], current);
      };
      allocate({0, false, kBase, kBase, false});
      for (int step = 0; step < kSteps; ++step) {
        if (live.empty() || random.below(100) < 50) {
          allocate(live.emplace_back(random_block(random, 1)));
        } else {
          const Live block = live.back();
          live.pop_back();
          shard.free(block.small, block.size, block.requested);
          current -= static_cast<std::int64_t>(block.size);
        }
        if (random.one_in(5000)) {
          Statistics read;
          counters.read(read);
        }
      }
      left[thread] = current;
    });
  }
  for (std::thread& thread : threads) thread.join();
  Statistics read;
  counters.read(read);
  const auto sum = [](const auto& values) {
    std::int64_t total = 0;
    for (const std::int64_t value : values) total += value;
    return total;
  };
  const Stat& bytes = read.allocated_bytes.all;
  CHECK_EQUAL(bytes.current, sum(left));
  CHECK_EQUAL(bytes.allocated, sum(allocated));
  CHECK_EQUAL(bytes.freed, sum(allocated) - sum(left));
  CHECK(bytes.peak >= sum(left));
  CHECK(bytes.peak >= *std::max_element(most.begin(), most.end()));
  CHECK(bytes.peak <= sum(most));

  counters.reset_peak();
  counters.reset_accumulated();
  counters.read(read);
  CHECK_EQUAL(read.allocated_bytes.all.peak, sum(left));
  CHECK_EQUAL(read.allocated_bytes.all.allocated, 0);
  CHECK_EQUAL(read.allocated_bytes.all.freed, 0);
}

// All threads hold their memory at the same moment, so the peak is known.
TEST(concurrent_statistics_miss_no_peak_of_many_threads) {
  constexpr std::size_t kThreads = 8;
  for (int round = 0; round < 50; ++round) {
    ConcurrentStatistics counters;
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&shard = counters.add_shard()] {
        for (int i = 0; i < 100; ++i) shard.allocate(true, 1_KiB, 1_KiB);
      });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&shard = counters.add_shard()] {
        shard.allocate(true, 1_MiB, 1_MiB);
        shard.request_free(true, 1_MiB);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Statistics read;
    counters.read(read);
    CHECK_EQUAL(read.allocated_bytes.all.current, static_cast<std::int64_t>(800_KiB));
    CHECK(read.allocated_bytes.all.peak >= static_cast<std::int64_t>(800_KiB + 1_MiB));
    CHECK(read.allocated_bytes.all.peak <= static_cast<std::int64_t>(800_KiB + 8_MiB));
  }
}

}  // namespace plimsoll
