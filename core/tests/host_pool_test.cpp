#include "plimsoll/allocator/host/host_pool.h"

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/allocator.h"
#include "plimsoll/driver/locked.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr double kMillisecond = 1e6;
constexpr PoolId kGraph{1, 7};

// A simulated GPU with a host pool. The host can page-lock `shared` bytes.
struct Machine {
  explicit Machine(Bytes shared = 64_MiB) : host(shared) {}

  [[nodiscard]] Bytes reserved() const {
    return static_cast<Bytes>(pool.statistics().reserved_bytes.current);
  }
  [[nodiscard]] Bytes active() const {
    return static_cast<Bytes>(pool.statistics().active_bytes.current);
  }

  SimulatedHost host;
  SimulatedDriver driver{host, 1_GiB};
  HostPool pool{driver};
};

}  // namespace

// --- chunks and holes --------------------------------------------------------------------------

TEST(host_pool_cuts_requests_from_chunks_of_granules) {
  Machine machine;
  const Address first = machine.pool.allocate(1000);
  const Address second = machine.pool.allocate(1);
  CHECK_EQUAL(second, first + 1024);
  CHECK_EQUAL(machine.active(), 1536U);
  CHECK_EQUAL(machine.reserved(), 2_MiB);
  CHECK_EQUAL(machine.driver.shared_used(), 2_MiB);
  CHECK_EQUAL(machine.pool.allocate(5_MiB) % 512, 0U);
  CHECK_EQUAL(machine.reserved(), 8_MiB);
  CHECK_EQUAL(machine.pool.statistics().segment.current, 2);
}

TEST(host_pool_uses_the_smallest_hole_that_fits) {
  Machine machine;
  const Address large = machine.pool.allocate(8_MiB);
  const Address small = machine.pool.allocate(4_MiB);
  CHECK(machine.pool.free(large));
  CHECK(machine.pool.free(small));
  CHECK_EQUAL(machine.pool.allocate(3_MiB), small);
  CHECK_EQUAL(machine.pool.allocate(6_MiB), large);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), large + 6_MiB);
  CHECK_EQUAL(machine.driver.calls(Call::allocate_host), 2U);
}

TEST(host_pool_joins_holes_that_touch_but_no_chunks) {
  Machine machine;
  std::vector<Address> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(machine.pool.allocate(1_MiB));
  CHECK_EQUAL(blocks[2], blocks[1] + 1_MiB);  // the addresses are adjacent, but in two chunks
  for (const int i : {0, 2, 3, 1}) CHECK(machine.pool.free(blocks[static_cast<std::size_t>(i)]));
  CHECK_EQUAL(machine.pool.allocate(2_MiB), blocks[0]);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), blocks[2]);
  CHECK_EQUAL(machine.pool.allocate(2_MiB) % kGranule, 0U);
  CHECK_EQUAL(machine.reserved(), 10_MiB);
}

TEST(host_pool_refuses_what_it_does_not_know) {
  Machine machine;
  const Address block = machine.pool.allocate(4_KiB);
  CHECK(!machine.pool.free(block + 512));
  CHECK(!machine.pool.record(block - 1, 1));
  CHECK(!machine.pool.record(block + 4_KiB, 1));
  CHECK(machine.pool.record(block + 4_KiB - 1, 1));
  CHECK(machine.pool.free(block));
  CHECK(!machine.pool.free(block));
  CHECK(!machine.pool.record(block, 1));
}

TEST(host_pool_gives_back_chunks_that_are_free) {
  Machine machine;
  const Address first = machine.pool.allocate(4_MiB);
  const Address second = machine.pool.allocate(1_MiB);
  CHECK(machine.pool.free(first));
  CHECK_EQUAL(machine.reserved(), 6_MiB);
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.reserved(), 2_MiB);
  CHECK_EQUAL(machine.driver.shared_used(), 2_MiB);
  CHECK(machine.pool.free(second));
  machine.driver.inject({Call::deallocate_host, 0, 1, Status::failed});
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.reserved(), 2_MiB);  // memory that could not be given back stays usable
  CHECK_EQUAL(machine.pool.allocate(2_MiB), second);
}

// --- queued work -------------------------------------------------------------------------------

TEST(host_pool_waits_for_recorded_streams_before_a_block_is_used_again) {
  Machine machine;
  const Address block = machine.pool.allocate(2_MiB);
  CHECK(machine.pool.record(block, 1));
  CHECK(machine.pool.record(block + 1_MiB, 2));
  machine.driver.launch(1, 5 * kMillisecond);
  machine.driver.launch(2, 9 * kMillisecond);
  CHECK(machine.pool.free(block));
  CHECK_EQUAL(machine.active(), 2_MiB);
  machine.host.advance(6 * kMillisecond);
  const Address other = machine.pool.allocate(2_MiB);
  CHECK(other != block);
  machine.host.advance(6 * kMillisecond);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), block);
  CHECK_EQUAL(machine.driver.events(), 0U);
}

TEST(host_pool_takes_what_was_queued_after_the_free_for_no_use) {
  Machine machine;
  const Address block = machine.pool.allocate(2_MiB);
  CHECK(machine.pool.record(block, 1));
  CHECK(machine.pool.free(block));
  machine.driver.hold(1);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), block);
}

TEST(host_pool_looks_for_every_completed_free_before_it_locks_more) {
  Machine machine;
  const Address first = machine.pool.allocate(2_MiB);
  const Address second = machine.pool.allocate(2_MiB);
  machine.driver.hold(1);
  machine.driver.launch(2, kMillisecond);
  CHECK(machine.pool.record(first, 1));
  CHECK(machine.pool.record(second, 2));
  CHECK(machine.pool.free(first));
  CHECK(machine.pool.free(second));
  machine.host.advance(2 * kMillisecond);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), second);
}

TEST(host_pool_records_streams_of_other_gpus_with_their_drivers) {
  Machine machine;
  SimulatedDriver other(machine.host, 1_GiB, DriverModel::linux, 1);
  const Address block = machine.pool.allocate(2_MiB);
  other.launch(3, kMillisecond);
  CHECK(machine.pool.record(block, 3, other));
  CHECK(machine.pool.free(block));
  CHECK_EQUAL(other.events(), 1U);
  CHECK_EQUAL(machine.driver.events(), 0U);
  CHECK(machine.pool.allocate(2_MiB) != block);
  machine.host.advance(2 * kMillisecond);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), block);
  CHECK_EQUAL(other.events(), 0U);
}

TEST(host_pool_keeps_a_block_whose_stream_cannot_be_recorded) {
  Machine machine;
  const Address block = machine.pool.allocate(2_MiB);
  CHECK(machine.pool.record(block, 1));
  machine.driver.inject({Call::record, 0, 2, Status::not_permitted});  // as during a capture
  CHECK(machine.pool.free(block));
  CHECK_EQUAL(machine.active(), 2_MiB);
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.active(), 2_MiB);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), block);
}

// --- graphs ------------------------------------------------------------------------------------

TEST(host_pool_keeps_the_blocks_of_a_graph_until_it_is_gone) {
  Machine machine;
  machine.pool.begin_allocate_to_pool(kGraph);
  const Address block = machine.pool.allocate(2_MiB, kGraph);
  CHECK(machine.pool.record(block, 1));
  CHECK(machine.pool.free(block));
  machine.pool.end_allocate_to_pool();
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.active(), 2_MiB);
  machine.driver.launch(5, kMillisecond);  // a replay, on a stream that the pool does not know
  const double end_ns = machine.host.now_ns() + kMillisecond;
  machine.pool.release_pool(kGraph);
  CHECK(machine.pool.allocate(2_MiB) != block);
  machine.pool.empty_cache();
  CHECK(machine.host.now_ns() >= end_ns);
  CHECK_EQUAL(machine.active(), 2_MiB);
  CHECK_EQUAL(machine.reserved(), 2_MiB);
}

TEST(host_pool_waits_for_no_device_while_a_graph_is_captured) {
  Machine machine;
  machine.pool.begin_allocate_to_pool(kGraph);
  const Address block = machine.pool.allocate(2_MiB, kGraph);
  machine.pool.end_allocate_to_pool();
  machine.pool.begin_allocate_to_pool({1, 8});
  machine.pool.release_pool(kGraph);
  CHECK(machine.pool.free(block));
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.driver.calls(Call::synchronize), 0U);
  CHECK_EQUAL(machine.active(), 2_MiB);
  machine.pool.end_allocate_to_pool();
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.active(), 0U);
}

TEST(host_pool_shared_by_graphs_lives_as_long_as_the_last) {
  Machine machine;
  for (int i = 0; i < 2; ++i) {
    machine.pool.begin_allocate_to_pool(kGraph);
    machine.pool.end_allocate_to_pool();
  }
  CHECK(machine.pool.free(machine.pool.allocate(2_MiB, kGraph)));
  machine.pool.release_pool(kGraph);
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.active(), 2_MiB);
  machine.pool.release_pool(kGraph);
  machine.pool.empty_cache();
  CHECK_EQUAL(machine.active(), 0U);
}

// --- running out -------------------------------------------------------------------------------

TEST(host_pool_says_that_shared_memory_is_spent) {
  Machine machine(16_MiB);
  const Address block = machine.pool.allocate(10_MiB);
  const Address other = machine.pool.allocate(1_MiB);
  const std::string text =
      message_of<HostOutOfMemory>([&] { return machine.pool.allocate(5_MiB); });
  CHECK_EQUAL(text,
              "Shared GPU memory (page-locked host memory) is spent. Tried to lock 6.00 MiB for a "
              "request of 5.00 MiB. 4.00 MiB of 16.00 MiB can still be locked. This process has "
              "11.00 MiB of pinned memory in use, and 1024.00 KiB is locked but unallocated");
  // The failed request did not reach the driver.
  CHECK_EQUAL(machine.driver.calls(Call::allocate_host), 2U);
  machine.pool.set_limit(13_MiB);
  CHECK(contains(message_of<HostOutOfMemory>([&] { return machine.pool.allocate(2_MiB); }),
                 "can still be locked; 13.00 MiB allowed."));
  CHECK_THROWS(machine.pool.allocate(~Bytes{0}), HostOutOfMemory);
  CHECK_EQUAL(machine.active(), 11_MiB);
  CHECK(machine.pool.free(block));
  CHECK(machine.pool.free(other));
}

TEST(host_pool_waits_for_queued_work_before_it_gives_up) {
  Machine machine(4_MiB);
  const Address block = machine.pool.allocate(4_MiB);
  machine.driver.launch(1, 5 * kMillisecond);
  CHECK(machine.pool.record(block, 1));
  CHECK(machine.pool.free(block));
  CHECK_EQUAL(machine.pool.allocate(4_MiB), block);
  CHECK(machine.host.now_ns() >= 5 * kMillisecond);
}

TEST(host_pool_gives_back_cached_chunks_before_it_gives_up) {
  Machine machine(8_MiB);
  const std::array blocks{machine.pool.allocate(4_MiB), machine.pool.allocate(4_MiB)};
  for (const Address block : blocks) CHECK(machine.pool.free(block));
  const Address large = machine.pool.allocate(8_MiB);
  CHECK_EQUAL(machine.reserved(), 8_MiB);
  CHECK(machine.pool.free(large));
  machine.pool.set_limit(4_MiB);
  CHECK_EQUAL(machine.pool.allocate(2_MiB), large);  // memory that the pool already has is usable
  CHECK_EQUAL(*machine.pool.limit(), 4_MiB);
}

TEST(host_pool_tells_a_failing_driver_from_memory_that_is_spent) {
  Machine machine;
  machine.driver.inject({Call::allocate_host, 0, 1, Status::failed});
  const Address block = machine.pool.allocate(1_MiB);  // the second try succeeds
  machine.driver.inject({Call::allocate_host, 0, 2, Status::device_lost});
  CHECK(contains(message_of<DriverError>([&] { return machine.pool.allocate(4_MiB); }),
                 "the driver failed to lock host memory: "));
  CHECK(machine.pool.free(block));
}

// --- statistics --------------------------------------------------------------------------------

TEST(host_pool_counts_as_pytorch_does) {
  Machine machine;
  CHECK(machine.pool.free(machine.pool.allocate(3_MiB)));
  const Address block = machine.pool.allocate(1_MiB);
  machine.pool.empty_cache();
  HostStatistics statistics = machine.pool.statistics();
  CHECK_EQUAL(statistics.active.allocated, 2);
  CHECK_EQUAL(statistics.active.current, 1);
  CHECK_EQUAL(static_cast<Bytes>(statistics.active_bytes.peak), 3_MiB);
  CHECK_EQUAL(static_cast<Bytes>(statistics.reserved_bytes.peak), 4_MiB);
  CHECK_EQUAL(statistics.segment.allocated, 1);
  CHECK_EQUAL(statistics.allocate_time.count, 1);
  CHECK(statistics.allocate_time.total_us > 0);
  CHECK_EQUAL(statistics.allocate_time.max_us, statistics.allocate_time.total_us);

  machine.pool.reset_peak_statistics();
  machine.pool.reset_accumulated_statistics();
  CHECK(machine.pool.free(block));
  machine.pool.empty_cache();
  statistics = machine.pool.statistics();
  CHECK_EQUAL(static_cast<Bytes>(statistics.active_bytes.peak), 1_MiB);
  CHECK_EQUAL(statistics.active.allocated, 0);
  CHECK_EQUAL(statistics.active.freed, 1);
  CHECK_EQUAL(statistics.segment.freed, 1);
  CHECK_EQUAL(statistics.allocate_time.count, 0);
  CHECK_EQUAL(statistics.allocate_time.max_us, 0);
  CHECK_EQUAL(statistics.deallocate_time.count, 1);
}

// --- random calls and failures -----------------------------------------------------------------

namespace {

// Makes random calls and checks them against a list of all ranges in use. A range is in use while
// its block is live, and longer if work that was queued before the free still uses the block.
class Exercise {
 public:
  explicit Exercise(std::uint64_t seed) : random_(seed) {}

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) step();
    machine_.driver.clear_faults();
    while (!live_.empty()) free(0);
    forget_finished(true);
    if (is_capturing_) machine_.pool.end_allocate_to_pool();
    for (const PoolId pool : begun_) machine_.pool.release_pool(pool);
    machine_.pool.empty_cache();
    CHECK_EQUAL(machine_.active(), 0U);
    CHECK_EQUAL(machine_.reserved(), 0U);
    CHECK_EQUAL(machine_.driver.shared_used(), 0U);
    CHECK_EQUAL(machine_.driver.events(), 0U);
  }
  [[nodiscard]] SimulatedDriver& driver() { return machine_.driver; }

 private:
  struct Range {
    Address address = 0;
    Bytes size = 0;
    PoolId pool;
    std::vector<StreamId> streams;
    double busy_until_ns = 0;
  };

  void step() {
    machine_.driver.launch(random_.below(3), static_cast<double>(random_.below(2'000'000)));
    machine_.host.advance(static_cast<double>(random_.below(1'000'000)));
    const std::uint64_t dice = random_.below(20);
    if (dice < 9) {
      allocate();
    } else if (dice < 12 && !live_.empty()) {
      Range& range = random_.pick(live_);
      const StreamId stream = random_.below(3);
      CHECK(machine_.pool.record(range.address + random_.below(range.size), stream));
      range.streams.push_back(stream);
    } else if (dice < 18 && !live_.empty()) {
      free(random_.below(live_.size()));
    } else if (dice == 18) {
      machine_.pool.empty_cache();
    } else if (dice == 19) {
      turn_graph();
    }
    CHECK_EQUAL(machine_.reserved(), machine_.driver.shared_used());
  }

  void turn_graph() {
    if (!is_capturing_ && begun_.size() < 3) {
      begun_.push_back({1, ++graphs_});
      machine_.pool.begin_allocate_to_pool(begun_.back());
      is_capturing_ = true;
    } else if (is_capturing_) {
      machine_.pool.end_allocate_to_pool();
      is_capturing_ = false;
    } else {
      machine_.pool.release_pool(begun_.front());
      for (auto* ranges : {&live_, &freed_}) {
        for (Range& range : *ranges) {
          if (range.pool == begun_.front()) range.pool = {};
        }
      }
      begun_.erase(begun_.begin());
    }
  }

  void allocate() {
    const Bytes size = random_.one_in(4) ? random_.between(1, 6_MiB) : random_.between(1, 64_KiB);
    const PoolId pool = is_capturing_ ? begun_.back() : PoolId{};
    Address address = 0;
    try {
      address = machine_.pool.allocate(size, pool);
    } catch (const HostOutOfMemory&) {
      return;
    } catch (const DriverError&) {
      return;
    }
    forget_finished(false);
    for (const auto* ranges : {&live_, &freed_}) {
      for (const Range& range : *ranges) {
        CHECK(address + size <= range.address || range.address + range.size <= address);
      }
    }
    live_.push_back({address, size, pool, {}, 0});
  }

  void free(std::size_t index) {
    Range range = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    for (const StreamId stream : range.streams) {
      range.busy_until_ns = std::max(range.busy_until_ns, machine_.driver.done_at_ns(stream));
    }
    CHECK(machine_.pool.free(range.address));
    freed_.push_back(range);
  }

  void forget_finished(bool all) {
    std::erase_if(freed_, [&](const Range& range) {
      return all || (range.pool.is_default() && range.busy_until_ns <= machine_.host.now_ns());
    });
  }

  Random random_;
  Machine machine_{32_MiB};
  std::vector<Range> live_;
  std::vector<Range> freed_;
  std::vector<PoolId> begun_;
  std::uint64_t graphs_ = 0;
  bool is_capturing_ = false;
};

}  // namespace

TEST(host_pool_never_lends_memory_that_is_in_use) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) Exercise(seed).run(400);
}

TEST(host_pool_loses_nothing_wherever_the_driver_fails) {
  constexpr std::array calls{Call::allocate_host, Call::deallocate_host, Call::record, Call::query,
                             Call::synchronize};
  for (const Call call : calls) {
    for (const Status status : {Status::out_of_memory, Status::not_permitted, Status::failed}) {
      for (std::uint64_t after = 0; after < 30; after += 3) {
        Exercise exercise(after);
        exercise.driver().inject({call, after, 1 + after % 5, status});
        exercise.run(150);
        if (after == 0) CHECK(exercise.driver().calls(call) > 0);
      }
    }
  }
}

TEST(host_pool_serves_several_threads) {
  SimulatedHost host(256_MiB);
  SimulatedDriver simulated(host, 1_GiB);
  LockedDriver driver(simulated);
  HostPool pool(driver);
  std::atomic<int> broken = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      Random random(seed);
      std::vector<Address> blocks;
      for (int i = 0; i < 500; ++i) {
        if (blocks.size() < 8 && random.one_in(2)) {
          blocks.push_back(pool.allocate(random.between(1, 3_MiB)));
          if (!pool.record(blocks.back(), seed)) ++broken;
        } else if (!blocks.empty()) {
          if (!pool.free(blocks.back())) ++broken;
          blocks.pop_back();
        }
        if (random.one_in(100)) pool.empty_cache();
      }
      for (const Address block : blocks) {
        if (!pool.free(block)) ++broken;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(broken.load(), 0);
  pool.empty_cache();
  CHECK_EQUAL(pool.statistics().active.current, 0);
  CHECK_EQUAL(simulated.shared_used(), 0U);
}

}  // namespace plimsoll
