// Tests a LockedAllocator: several threads free blocks by address, and allocate blocks at addresses
// that they choose.

#include "plimsoll/allocator/program_allocator.h"

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/uncached.h"
#include "plimsoll/driver/locked.h"
#include "support.h"

namespace plimsoll {
namespace {

// A simulated GPU with a LockedAllocator, `live`, around `allocator`. Tests check the invariants of
// `allocator`.
struct LiveGpu {
  explicit LiveGpu(Bytes dedicated, std::string_view config = "")
      : LiveGpu(dedicated, [&](Driver& on) {
          return std::make_unique<NativeAllocator>(on, AllocatorConfig::parse(config, {}));
        }) {}
  LiveGpu(Bytes dedicated, const std::function<std::unique_ptr<Allocator>(Driver&)>& make)
      : driver(host, dedicated) {
    std::unique_ptr<Allocator> made = make(driver);
    allocator = made.get();
    live = std::make_unique<LockedAllocator>(std::move(made));
  }

  SimulatedHost host{0};
  SimulatedDriver driver;
  Allocator* allocator = nullptr;
  std::unique_ptr<LockedAllocator> live;
};

// A simulated driver that imports every descriptor as new memory of one granule.
class ImportingDriver final : public LockedDriver {
 public:
  using LockedDriver::LockedDriver;
  Status import_handle(int descriptor, Handle& handle) override {
    if (descriptor < 0) return Status::invalid_value;
    return create(kGranule, Tier::dedicated, handle);
  }
};

class Counter final : public Observer {
 public:
  void observe(const TraceEvent& event) override {
    ++counts[static_cast<std::size_t>(event.action)];
  }
  [[nodiscard]] int of(Action action) const { return counts[static_cast<std::size_t>(action)]; }

 private:
  int counts[kActionCount]{};
};

}  // namespace

TEST(locked_allocator_serves_by_address) {
  LiveGpu gpu(1_GiB);
  const Address first = gpu.live->allocate(3_MiB, 7);
  const Address second = gpu.live->allocate(1_KiB, 0);
  CHECK(first != second);
  CHECK(gpu.live->record_stream(first, 8));
  CHECK(!gpu.live->record_stream(first + 512, 8));
  CHECK(gpu.live->free(second));
  CHECK(!gpu.live->free(second));
  CHECK(!gpu.live->free(first + 512));
  CHECK(gpu.live->free(first));
  gpu.live->hold()->empty_cache({});
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
}

TEST(locked_allocator_finds_the_block_and_segment_around_an_address) {
  LiveGpu gpu(1_GiB);
  const Address first = gpu.live->allocate(3_MiB, 7);
  const Address second = gpu.live->allocate(5_MiB - 100, 7);
  for (const Bytes offset : {Bytes{0}, Bytes{1}, Bytes{5_MiB - 1}}) {
    const std::optional<Location> found = gpu.live->locate(second + offset);
    CHECK(found.has_value());
    if (!found) continue;
    CHECK_EQUAL(found->block, second);
    CHECK_EQUAL(found->block_size, Bytes{5_MiB});
    CHECK_EQUAL(found->requested, Bytes{5_MiB - 100});
    CHECK_EQUAL(found->segment, first);
    CHECK_EQUAL(found->segment_size, Bytes{20_MiB});
    CHECK_EQUAL(found->stream, StreamId{7});
    CHECK(found->pool.is_default() && !found->is_virtual);
  }
  CHECK(!gpu.live->locate(second + 5_MiB).has_value());
  CHECK(gpu.live->free(first));
  CHECK(!gpu.live->locate(first).has_value());
}

TEST(a_block_of_an_expandable_segment_is_virtual_and_lies_in_itself) {
  LiveGpu gpu(1_GiB, "expandable_segments:True");
  gpu.live->hold()->begin_allocate_to_pool({0, 1}, {});
  gpu.live->allocate(3_MiB, 0);
  const Address address = gpu.live->allocate(3_MiB, 0);
  const std::optional<Location> found = gpu.live->locate(address);
  CHECK(found && found->is_virtual && found->segment == address);
  CHECK(found && found->segment_size == 3_MiB && found->pool == PoolId({0, 1}));
}

TEST(locked_allocator_works_from_several_threads) {
  for (const bool is_cached : {true, false}) {
    LiveGpu gpu(2_GiB, [&](Driver& on) -> std::unique_ptr<Allocator> {
      if (!is_cached) return std::make_unique<UncachedAllocator>(on);
      return std::make_unique<NativeAllocator>(on, AllocatorConfig::parse("", {}));
    });
    Counter counter;
    gpu.live->hold()->set_observer(&counter);
    constexpr int kThreads = 4;
    constexpr int kRequests = 1000;
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Random random(static_cast<std::uint64_t>(t) + 1);
        std::vector<Address> live;
        for (int i = 0; i < kRequests; ++i) {
          const StreamId stream = random.below(3);
          live.push_back(gpu.live->allocate(random.between(1, 4_MiB), stream));
          if (random.one_in(8)) gpu.live->record_stream(live.back(), stream + 1);
          if (!gpu.live->locate(random.pick(live))) ++failures;
          if (live.size() < 16) continue;
          if (!gpu.live->free(live.front())) ++failures;
          live.erase(live.begin());
        }
        for (const Address address : live) {
          if (!gpu.live->free(address)) ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(failures.load(), 0);
    gpu.live->hold()->empty_cache({});
    gpu.allocator->check_invariants();
    CHECK_EQUAL(gpu.live->statistics().allocation.all.allocated, kThreads * kRequests);
    CHECK_EQUAL(counter.of(Action::alloc), kThreads * kRequests);
    CHECK_EQUAL(counter.of(Action::free_completed), kThreads * kRequests);
    CHECK_EQUAL(counter.of(Action::segment_alloc), counter.of(Action::segment_free));
    CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  }
}

TEST(an_observer_sees_events_while_no_history_is_recorded) {
  LiveGpu gpu(8_MiB);
  Counter counter;
  gpu.live->free(gpu.live->allocate(512, 0));
  gpu.live->hold()->set_observer(&counter);
  gpu.live->free(gpu.live->allocate(512, 0));
  CHECK_THROWS(gpu.live->allocate(30_MiB, 0), OutOfMemory);
  gpu.live->hold()->set_observer(nullptr);
  gpu.live->free(gpu.live->allocate(512, 0));
  CHECK_EQUAL(counter.of(Action::alloc), 1);
  CHECK_EQUAL(counter.of(Action::free_requested), 1);
  CHECK_EQUAL(counter.of(Action::oom), 1);
  CHECK_EQUAL(gpu.allocator->history().size(), std::size_t{0});
}

TEST(memory_of_a_locked_allocator_is_not_exported) {
  LiveGpu gpu(1_GiB);
  const Address address = gpu.live->allocate(3_MiB, 0);
  CHECK_THROWS(gpu.live->export_memory(address), std::invalid_argument);
}

TEST(uses_of_a_pool_are_counted) {
  for (const bool is_cached : {true, false}) {
    LiveGpu gpu(1_GiB, [&](Driver& on) -> std::unique_ptr<Allocator> {
      if (!is_cached) return std::make_unique<UncachedAllocator>(on);
      return std::make_unique<NativeAllocator>(on, AllocatorConfig::parse("", {}));
    });
    const PoolId pool{0, 1};
    CHECK_EQUAL(gpu.live->hold()->pool_uses(pool), 0);
    CHECK_THROWS(gpu.live->hold()->release_pool(pool), std::invalid_argument);
    CHECK_THROWS(gpu.live->hold()->set_pool_option(pool, PoolOption::no_split, true),
                 std::invalid_argument);
    gpu.live->hold()->use_pool(pool);
    gpu.live->hold()->begin_allocate_to_pool(pool, {});
    gpu.live->hold()->end_allocate_to_pool(pool);
    CHECK_EQUAL(gpu.live->hold()->pool_uses(pool), 2);
    gpu.live->hold()->release_pool(pool);
    gpu.live->hold()->release_pool(pool);
    CHECK_EQUAL(gpu.live->hold()->pool_uses(pool), 0);
    CHECK_THROWS(gpu.live->hold()->release_pool(pool), std::invalid_argument);
  }
}

TEST(memory_of_another_process_is_mapped_and_unmapped_as_a_whole) {
  SimulatedHost host(0);
  SimulatedDriver simulated(host, 1_GiB);
  ImportingDriver driver(simulated);
  ImportedMemory memory(driver);
  const std::vector<ImportedMemory::Piece> pieces{{3, kGranule}, {4, kGranule}};
  const Address address = memory.open(pieces);
  CHECK_EQUAL(simulated.dedicated_used(), 2 * kGranule);
  CHECK(!memory.close(address + kGranule));
  CHECK(memory.close(address));
  CHECK(!memory.close(address));
  CHECK_EQUAL(simulated.dedicated_used(), Bytes{0});

  const std::vector<ImportedMemory::Piece> broken{{3, kGranule}, {-1, kGranule}};
  CHECK_THROWS(memory.open(broken), DriverError);
  simulated.inject({Call::set_access, 0, 1});
  CHECK_THROWS(memory.open(pieces), DriverError);
  CHECK_EQUAL(simulated.dedicated_used(), Bytes{0});
  CHECK_EQUAL(memory.open(pieces), address);
}

// --- blocks at given places --------------------------------------------------------------------

TEST(a_block_is_cut_out_of_the_middle_of_a_free_one) {
  Gpu gpu(1_GiB);
  Block* const all = gpu.malloc(20_MiB);
  const Address begin = all->address;
  gpu.free({all});
  gpu.events();
  Block* const middle = gpu.allocator.malloc_at(begin + 4_MiB, 6_MiB, 0, {});
  CHECK_EQUAL(gpu.events(), "alloc 4M, alloc 6M, free_requested 4M, free_completed 4M");
  CHECK_EQUAL(gpu.layout(), "[4M free, 6M used, 10M free]");
  CHECK_EQUAL(middle->requested, Bytes{6_MiB});
  CHECK_EQUAL(gpu.allocator.statistics().inactive_split.all.current, 2);
  CHECK_EQUAL(gpu.allocator.statistics().inactive_split_bytes.all.current,
              static_cast<std::int64_t>(14_MiB));
  gpu.allocator.check_invariants();
  Block* const first = gpu.allocator.malloc_at(begin, 4_MiB, 0, {});
  Block* const last = gpu.allocator.malloc_at(begin + 10_MiB, 10_MiB, 0, {});
  CHECK_EQUAL(gpu.layout(), "[4M used, 6M used, 10M used]");
  CHECK_EQUAL(gpu.allocator.statistics().inactive_split_bytes.all.current, 0);
  gpu.allocator.check_invariants();
  gpu.free({middle, first, last});
  CHECK_EQUAL(gpu.layout(), "[20M free]");
  CHECK_EQUAL(gpu.allocator.statistics().inactive_split.all.current, 0);
}

TEST(what_lies_before_a_block_at_a_place_is_lent_for_a_moment_from_2_13_on) {
  for (const auto& [version, peak] : {std::pair{"2.12", 6_MiB}, {"2.13", 10_MiB}}) {
    for (const char* const config : {"", "expandable_segments:True"}) {
      Gpu gpu(1_GiB, config, TorchVersion::parse(version));
      Block* const all = gpu.malloc(20_MiB);
      const Address begin = all->address;
      gpu.free({all});
      gpu.allocator.reset_peak_statistics();
      gpu.allocator.malloc_at(begin + 4_MiB, 6_MiB, 0, {});
      const Statistics& statistics = gpu.allocator.statistics();
      CHECK_EQUAL(statistics.allocated_bytes.all.peak, static_cast<std::int64_t>(peak));
      CHECK_EQUAL(statistics.allocated_bytes.all.current, static_cast<std::int64_t>(6_MiB));
      CHECK_EQUAL(statistics.allocation.all.allocated, peak == 6_MiB ? 2 : 3);
      CHECK_EQUAL(gpu.layout(), "[4M free, 6M used, 10M free]");
      gpu.allocator.check_invariants();
    }
  }
}

TEST(a_block_at_a_place_is_exact_even_where_a_request_would_take_more) {
  Gpu gpu(1_GiB);
  Block* const all = gpu.malloc(20_MiB);
  const Address begin = all->address;
  gpu.free({all});
  gpu.allocator.malloc_at(begin, 20_MiB - 512, 0, {});
  CHECK_EQUAL(gpu.layout(), "[20971008 used, 512 free]");
  gpu.allocator.check_invariants();
}

TEST(a_block_at_a_place_needs_one_free_block_of_its_pool_and_stream) {
  Gpu gpu(1_GiB);
  gpu.allocator.use_pool({0, 1});
  Block* const used = gpu.malloc(5_MiB, 3);
  const Address begin = used->address;
  const auto refuses = [&](Address address, Bytes size, StreamId stream, PoolId pool) {
    CHECK_THROWS(gpu.allocator.malloc_at(address, size, stream, pool), std::invalid_argument);
  };
  refuses(begin, 5_MiB, 3, {});              // in use
  refuses(begin + 4_MiB, 2_MiB, 3, {});      // partly in use
  refuses(begin + 5_MiB, 2_MiB, 0, {});      // belongs to another stream
  refuses(begin + 5_MiB, 2_MiB, 3, {0, 1});  // belongs to another pool
  refuses(begin + 5_MiB, 2_MiB, 3, {0, 2});  // there is no such pool
  refuses(begin + 5_MiB, 16_MiB, 3, {});     // beyond the segment
  refuses(begin + 5_MiB, ~Bytes{0}, 3, {});  // beyond the largest address
  refuses(begin + 5_MiB + 1, 512, 3, {});    // no block begins there
  refuses(begin + 5_MiB, 100, 3, {});        // no block ends there
  refuses(begin + 5_MiB, 0, 3, {});          // no bytes
  refuses(begin + 20_MiB, 512, 3, {});       // no memory there
  CHECK_EQUAL(gpu.layout(), "[5M used, 15M free]");
  gpu.allocator.check_invariants();
}

TEST(a_pool_is_laid_out_again_as_it_was) {
  for (const char* const config : {"", "expandable_segments:True"}) {
    Gpu gpu(1_GiB, config);
    RandomProgram program(gpu, 5, {.uses_streams = false, .uses_pools = false});
    for (int i = 0; i < 300; ++i) {
      program.step();
      gpu.events();
    }
    const std::vector<SegmentInfo> before = gpu.allocator.segments();
    for (const auto& [address, live] : program.live()) gpu.free({live.block});
    for (const SegmentInfo& segment : before) {
      for (const BlockInfo& block : segment.blocks) {
        if (block.state != BlockState::active_allocated) continue;
        Block* const again = gpu.allocator.malloc_at(block.address, block.size, 0, {});
        CHECK_EQUAL(again->address, block.address);
        CHECK_EQUAL(again->size, block.size);
        again->requested = block.requested;
      }
    }
    CHECK_EQUAL(describe(gpu.allocator.segments()), describe(before));
  }
}

TEST(the_largest_free_block_is_of_the_default_pool) {
  Gpu gpu(1_GiB);
  CHECK_EQUAL(gpu.allocator.largest_free_block(), Bytes{0});
  gpu.free({gpu.malloc(30_MiB, 5)});
  gpu.malloc(5_MiB);
  CHECK_EQUAL(gpu.allocator.largest_free_block(), Bytes{30_MiB});
  gpu.allocator.begin_allocate_to_pool({0, 1}, {});
  gpu.free({gpu.malloc(40_MiB)});
  gpu.allocator.end_allocate_to_pool({0, 1});
  CHECK_EQUAL(gpu.allocator.largest_free_block(), Bytes{30_MiB});
}

}  // namespace plimsoll
