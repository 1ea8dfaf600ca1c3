// Tests the elastic allocator with dedicated memory (the card's) and shared memory (the host's):
// when requests spill into shared memory, where they are placed, and how they move back.

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/driver/locked.h"
#include "support.h"
#include "tiered_gpu.h"

namespace plimsoll {
namespace {

constexpr PoolId kPool{0, 1};
constexpr Call kMoveCalls[] = {Call::reserve, Call::create,     Call::release,    Call::map,
                               Call::copy,    Call::unmap,      Call::set_access, Call::record,
                               Call::query,   Call::synchronize};

Bytes count_of(const Stat& stat) { return static_cast<Bytes>(stat.current); }

std::int64_t spills(const TieredGpu& gpu) { return gpu.allocator.statistics().num_spills; }

std::string failure(TieredGpu& gpu, Bytes size) {
  return message_of<OutOfMemory>([&] { return gpu.malloc(size); });
}

}  // namespace

// --- spilling ----------------------------------------------------------------------------------

TEST(tiers_strict_never_uses_shared_memory) {
  TieredGpu gpu(64_MiB, 1_GiB);
  Block* const block = gpu.malloc(60_MiB);
  CHECK_EQUAL(failure(gpu, 20_MiB).find("hared memory"), std::string::npos);
  CHECK_EQUAL(gpu.driver.shared_used(), Bytes{0});
  CHECK_EQUAL(spills(gpu), 0);
  gpu.free({block});
  gpu.check_nothing_is_left();
}

TEST(tiers_spill_takes_what_dedicated_memory_is_left_and_shared_for_the_rest) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  Block* const before = gpu.malloc(40_MiB);
  CHECK_EQUAL(spills(gpu), 0);
  Block* const block = gpu.malloc(100_MiB);
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{64_MiB});
  CHECK_EQUAL(gpu.driver.shared_used(), Bytes{76_MiB});
  CHECK_EQUAL(block->shared, Bytes{76_MiB});
  CHECK_EQUAL(spills(gpu), 1);
  gpu.fill(block, 7);
  CHECK(gpu.holds(block, 7));
  gpu.allocator.check_invariants();
  gpu.free({before, block});
  gpu.allocator.check_invariants();
  gpu.check_nothing_is_left();
}

TEST(tiers_spill_uses_free_dedicated_memory_first) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  std::vector<Block*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(gpu.malloc(4_MiB));
  for (std::size_t i = 0; i < 16; i += 2) gpu.free({blocks[i]});
  Block* const fits = gpu.malloc(32_MiB);
  CHECK_EQUAL(fits->shared, Bytes{0});
  gpu.free({fits});
  const Block* const spilled = gpu.malloc(40_MiB);
  CHECK_EQUAL(spilled->shared, Bytes{8_MiB});
  gpu.allocator.check_invariants();
}

TEST(tiers_spill_takes_dedicated_memory_before_cached_shared_memory) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  Block* const wall = gpu.malloc(48_MiB);
  gpu.free({gpu.malloc_shared(32_MiB)});
  const Block* const block = gpu.malloc(40_MiB);
  CHECK_EQUAL(block->shared, Bytes{24_MiB});
  CHECK_EQUAL(gpu.driver.shared_used(), Bytes{32_MiB});
  gpu.free({wall});
}

TEST(tiers_spill_stays_below_the_dedicated_limit) {
  TieredGpu gpu(1_GiB, 1_GiB, SpillPolicy::spill);
  gpu.allocator.set_limit(50_MiB);
  const Block* const block = gpu.malloc(80_MiB);
  CHECK_EQUAL(block->shared, Bytes{30_MiB});
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{50_MiB});
  gpu.allocator.set_limit(0);  // the limit is below the reserved memory
  CHECK_EQUAL(gpu.malloc(10_MiB)->shared, Bytes{10_MiB});
  gpu.allocator.set_limit(60_MiB);
  CHECK_EQUAL(gpu.malloc(10_MiB)->shared, Bytes{0});
  gpu.allocator.check_invariants();
}

TEST(tiers_small_and_cached_requests_go_to_dedicated_memory_first_after_a_spill) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  Block* const small = gpu.malloc(512);
  Block* const large = gpu.malloc(62_MiB);
  Block* const spilled = gpu.malloc(20_MiB);
  CHECK_EQUAL(spilled->shared, Bytes{20_MiB});
  CHECK_EQUAL(gpu.malloc(512)->shared, Bytes{0});
  gpu.free({spilled, large});
  for (int i = 0; i < 6; ++i) CHECK_EQUAL(gpu.malloc(10_MiB)->shared, Bytes{0});
  CHECK_EQUAL(spills(gpu), 1);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.malloc(10_MiB)->shared, Bytes{8_MiB});
  gpu.free({small});
  gpu.allocator.check_invariants();
}

TEST(tiers_dedicated_parts_of_what_spilled_serve_requests_that_never_spill) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  gpu.free({gpu.malloc(100_MiB)});
  gpu.allocator.set_spill_policy(SpillPolicy::strict);
  CHECK_EQUAL(gpu.malloc(64_MiB)->shared, Bytes{0});
  CHECK_THROWS(gpu.malloc(2_MiB), OutOfMemory);
  gpu.allocator.check_invariants();
}

TEST(tiers_memory_ends_where_both_end) {
  TieredGpu gpu(64_MiB, 32_MiB, SpillPolicy::spill);
  Block* const block = gpu.malloc(96_MiB);
  CHECK_EQUAL(block->shared, Bytes{32_MiB});
  const std::string state = describe(gpu.allocator.segments());
  const std::string both = failure(gpu, 2_MiB);
  CHECK(both.find("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of "
                  "64.00 MiB of which 0 bytes is free.") == 0);
  CHECK(both.find("cuda-alloc-conf) Shared memory cannot serve the request either: 32.00 MiB of it "
                  "is in use, 32.00 MiB is allowed and 0 bytes is free.") != std::string::npos);
  CHECK_EQUAL(describe(gpu.allocator.segments()), state);
  gpu.free({block});
  gpu.allocator.empty_cache();
  gpu.allocator.set_shared_limit(16_MiB);
  CHECK_THROWS(gpu.malloc(82_MiB), OutOfMemory);
  CHECK(failure(gpu, 82_MiB)
            .find("0 bytes of it is in use, 16.00 MiB is allowed and 16.00 MiB is "
                  "free.") != std::string::npos);
  gpu.free({gpu.malloc(80_MiB)});
  gpu.check_nothing_is_left();
}

TEST(tiers_what_the_driver_refuses_spills_within_the_shared_limit) {
  TieredGpu gpu(256_MiB, 256_MiB, SpillPolicy::spill);
  gpu.allocator.set_shared_limit(8_MiB);
  // The driver has less memory than it reports. It refuses memory for the whole request, and then
  // memory for the request's first granule. So the first granule spills.
  gpu.driver.inject({Call::create, 0, 2, Status::out_of_memory});
  Block* const block = gpu.malloc(6_MiB);
  CHECK_EQUAL(block->shared, Bytes{2_MiB});
  gpu.free({block});
  gpu.allocator.empty_cache();
  gpu.driver.clear_faults();
  for (const std::uint64_t dedicated : {0U, 1U, 3U, 5U, 7U, 9U}) {
    gpu.driver.inject({Call::create, dedicated, 1, Status::out_of_memory});
  }
  CHECK_THROWS(gpu.malloc(12_MiB), OutOfMemory);
  gpu.driver.clear_faults();
  gpu.check_nothing_is_left();
}

TEST(tiers_are_counted_and_told_of) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  gpu.allocator.history().record_up_to(1000);
  Block* const first = gpu.malloc(64_MiB);
  Block* const spilled = gpu.malloc(10_MiB);
  Block* const shared = gpu.malloc_shared(6_MiB);
  Statistics statistics = gpu.allocator.statistics();
  CHECK_EQUAL(count_of(statistics.shared_allocated_bytes), Bytes{16_MiB});
  CHECK_EQUAL(count_of(statistics.shared_reserved_bytes), Bytes{16_MiB});
  CHECK_EQUAL(count_of(statistics.reserved_bytes.all), Bytes{80_MiB});
  CHECK_EQUAL(statistics.num_spills, 1);
  Bytes in_segments = 0;
  Bytes in_blocks = 0;
  for (const SegmentInfo& segment : gpu.allocator.segments()) {
    in_segments += segment.shared;
    for (const BlockInfo& block : segment.blocks) in_blocks += block.shared;
  }
  CHECK_EQUAL(in_segments, Bytes{16_MiB});
  CHECK_EQUAL(in_blocks, Bytes{16_MiB});
  gpu.free({spilled});
  gpu.allocator.record_stream(shared, 1);
  gpu.free({shared});
  gpu.allocator.poll();
  statistics = gpu.allocator.statistics();
  CHECK_EQUAL(count_of(statistics.shared_allocated_bytes), Bytes{0});
  CHECK_EQUAL(static_cast<Bytes>(statistics.shared_allocated_bytes.peak), Bytes{16_MiB});
  CHECK_EQUAL(count_of(statistics.shared_reserved_bytes), Bytes{16_MiB});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(count_of(gpu.allocator.statistics().shared_reserved_bytes), Bytes{0});
  gpu.free({first});

  std::map<Action, Bytes> told;
  const History& history = gpu.allocator.history();
  for (std::size_t i = 0; i < history.size(); ++i) told[history[i].action] += history[i].shared;
  for (const Action action : {Action::alloc, Action::free_requested, Action::free_completed,
                              Action::segment_map, Action::segment_unmap}) {
    CHECK_EQUAL(told[action], Bytes{16_MiB});
  }
}

// --- waiting -----------------------------------------------------------------------------------

TEST(tiers_spill_waits_for_nothing_that_it_cannot_gain_by) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  gpu.malloc(50_MiB);
  gpu.driver.launch(0, 1e9);
  gpu.driver.launch(1, 1e9);
  gpu.free({gpu.malloc(4_MiB, 1)});  // stream 1 takes this memory again right away
  gpu.malloc(4_MiB, 1);
  gpu.free({gpu.malloc(6_MiB)});            // stream 0 can reuse it without waiting
  gpu.free({gpu.malloc_shared(6_MiB, 1)});  // free memory in the shared tier cannot prevent a spill
  gpu.free({gpu.malloc(600_KiB, 1)});       // only whole pieces can move
  gpu.malloc(512, 1);
  for (int i = 0; i < 5; ++i) gpu.malloc(20_MiB);
  CHECK_EQUAL(spills(gpu), 5);
  CHECK_EQUAL(gpu.driver.calls(Call::synchronize), std::uint64_t{0});
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 0);
}

TEST(tiers_spill_waits_for_dedicated_memory_of_other_streams) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  Block* const other = gpu.malloc(60_MiB, 1);
  gpu.driver.launch(1, 1e6);
  gpu.free({other});
  CHECK_EQUAL(gpu.malloc(60_MiB)->shared, Bytes{0});
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
  CHECK_EQUAL(spills(gpu), 0);
}

TEST(tiers_waits_for_shared_memory_of_other_streams_before_it_fails) {
  for (const SpillPolicy policy : {SpillPolicy::strict, SpillPolicy::spill}) {
    TieredGpu gpu(64_MiB, 32_MiB, policy);
    gpu.malloc(64_MiB);
    Block* const other = gpu.malloc_shared(32_MiB, 1);
    gpu.driver.launch(1, 1e6);
    gpu.free({other});
    CHECK_EQUAL(gpu.malloc_shared(20_MiB)->shared, Bytes{20_MiB});
    if (policy == SpillPolicy::spill) {
      CHECK_EQUAL(gpu.malloc(4_MiB)->shared, Bytes{4_MiB});
    } else {
      CHECK_THROWS(gpu.malloc(4_MiB), OutOfMemory);
    }
    gpu.allocator.check_invariants();
  }
}

// --- placement ---------------------------------------------------------------------------------

TEST(placement_in_shared_memory_leaves_dedicated_memory_alone) {
  TieredGpu gpu(64_MiB, 64_MiB);
  Block* const large = gpu.malloc_shared(10_MiB);
  Block* const small = gpu.malloc_shared(100);
  CHECK_EQUAL(large->shared, Bytes{10_MiB});
  CHECK_EQUAL(small->shared, Bytes{512});
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  CHECK_EQUAL(spills(gpu), 0);
  const std::uint64_t created = gpu.driver.calls(Call::create);
  gpu.free({large});
  CHECK_EQUAL(gpu.malloc_shared(10_MiB)->address, large->address);
  CHECK_EQUAL(gpu.driver.calls(Call::create), created);
  CHECK_EQUAL(gpu.malloc(1_MiB)->shared, Bytes{0});
  gpu.allocator.check_invariants();
}

TEST(placement_in_shared_memory_never_takes_dedicated_parts_of_what_spilled) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  gpu.free({gpu.malloc(100_MiB)});
  CHECK_EQUAL(gpu.malloc_shared(100_MiB)->shared, Bytes{100_MiB});
  gpu.allocator.check_invariants();
}

TEST(placement_falls_back_to_dedicated_memory) {
  TieredGpu gpu(64_MiB, 16_MiB);
  CHECK_EQUAL(gpu.malloc_shared(16_MiB)->shared, Bytes{16_MiB});
  CHECK_EQUAL(gpu.malloc_shared(16_MiB)->shared, Bytes{0});
  gpu.allocator.set_shared_limit(0);
  CHECK_EQUAL(gpu.malloc_shared(16_MiB)->shared, Bytes{0});
  const Placed placed(kNoRegion, Tier::shared);
  CHECK(failure(gpu, 40_MiB).find("16.00 MiB of it is in use, 0 bytes is allowed") !=
        std::string::npos);
  gpu.allocator.check_invariants();
}

TEST(placement_region_has_memory_of_its_own) {
  TieredGpu gpu(256_MiB, 64_MiB);
  CHECK(!gpu.allocator.region_use(1));
  Block* const outside = gpu.malloc(4_MiB);
  Block* const first = gpu.malloc_in(1, 4_MiB);
  Block* const second = gpu.malloc_in(2, 4_MiB);
  std::set<PoolId> pools;
  for (const SegmentInfo& segment : gpu.allocator.segments()) pools.insert(segment.pool);
  CHECK_EQUAL(pools.size(), std::size_t{3});
  {
    const Placed placed(1, Tier::shared);
    CHECK_EQUAL(gpu.malloc(2_MiB)->shared, Bytes{2_MiB});
  }
  const RegionUse use = *gpu.allocator.region_use(1);
  CHECK_EQUAL(use.allocated, Bytes{6_MiB});
  CHECK_EQUAL(use.reserved, Bytes{6_MiB});
  CHECK_EQUAL(use.shared_reserved, Bytes{2_MiB});
  CHECK_EQUAL(use.paused, Bytes{0});
  gpu.free({first, second, outside});
  // This request takes all memory of the card, including the memory that the two regions had.
  CHECK_EQUAL(gpu.malloc(256_MiB)->size, Bytes{256_MiB});
  gpu.allocator.check_invariants();
}

TEST(placement_is_of_one_thread_and_ends_with_it) {
  TieredGpu gpu(64_MiB, 64_MiB);
  std::thread([&] {
    ThisThread::set_placement(Placement{1, Tier::shared});
    CHECK(ThisThread::has_placement());
    CHECK_EQUAL(gpu.malloc(2_MiB)->shared, Bytes{2_MiB});
    std::thread([&] {
      CHECK(!ThisThread::has_placement());
      CHECK_EQUAL(gpu.malloc(2_MiB)->shared, Bytes{0});
    }).join();
    ThisThread::set_placement(Placement{2, Tier::dedicated});
    CHECK_EQUAL(ThisThread::placement().region, RegionId{2});
    CHECK_EQUAL(gpu.malloc(2_MiB)->shared, Bytes{0});
    ThisThread::set_placement(Placement{1, Tier::shared});
  }).join();
  CHECK(!ThisThread::has_placement());
  CHECK_EQUAL(gpu.malloc(2_MiB)->shared, Bytes{0});
  CHECK_EQUAL(gpu.allocator.region_use(2)->allocated, Bytes{2_MiB});
}

TEST(placement_a_capture_comes_before_a_region) {
  TieredGpu gpu(64_MiB, 64_MiB);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.malloc_in(1, 2_MiB);
  gpu.allocator.end_allocate_to_pool(kPool);
  CHECK(!gpu.allocator.region_use(1));
}

// --- tiers with pools, captures and other features ---------------------------------------------

TEST(tiers_spill_in_a_capture_calls_for_no_event) {
  TieredGpu gpu(64_MiB, 64_MiB, SpillPolicy::spill);
  gpu.free({gpu.malloc(10_MiB, 1)});
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  const std::uint64_t calls = gpu.event_calls();
  Block* const block = gpu.malloc(80_MiB);
  Block* const shared = gpu.malloc_shared(4_MiB);
  CHECK_THROWS(gpu.malloc(200_MiB), OutOfMemory);
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{0});
  CHECK_EQUAL(gpu.event_calls(), calls);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.allocator.check_invariants();
  gpu.free({block, shared});
  gpu.allocator.release_pool(kPool);
  gpu.check_nothing_is_left();
}

TEST(tiers_no_split_pool_spills_whole_blocks) {
  TieredGpu gpu(64_MiB, 256_MiB, SpillPolicy::spill);
  gpu.allocator.use_pool(kPool);
  gpu.allocator.set_pool_option(kPool, PoolOption::no_split, true);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  std::vector<Block*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(gpu.malloc(24_MiB));
  blocks.push_back(gpu.malloc_shared(24_MiB));
  CHECK_EQUAL(std::count_if(blocks.begin(), blocks.end(),
                            [](const Block* block) { return block->shared == block->size; }),
              std::ptrdiff_t{4});
  for (Block* const block : blocks) gpu.free({block});
  for (int i = 0; i < 5; ++i) gpu.malloc(24_MiB);
  gpu.allocator.check_invariants();
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.allocator.rebalance(1_GiB);
  gpu.allocator.check_invariants();
}

TEST(tiers_recorded_stream_keeps_a_spilled_block) {
  TieredGpu gpu(16_MiB, 64_MiB, SpillPolicy::spill);
  Block* const block = gpu.malloc(40_MiB);
  const Address address = block->address;
  gpu.driver.hold(1);
  gpu.allocator.record_stream(block, 1);
  gpu.free({block});
  gpu.allocator.poll();
  CHECK(!gpu.allocator.locate(address));
  gpu.allocator.check_invariants();
  gpu.driver.finish(1);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.malloc(40_MiB)->address, address);
  gpu.allocator.check_invariants();
}

TEST(tiers_block_at_a_place_in_spilled_memory_is_counted) {
  TieredGpu gpu(16_MiB, 64_MiB, SpillPolicy::spill);
  Block* const block = gpu.malloc(40_MiB);
  const Address address = block->address;
  gpu.free({block});
  Block* const middle = gpu.allocator.malloc_at(address + 15_MiB, 4_MiB, 0, {});
  CHECK_EQUAL(middle->shared, Bytes{3_MiB});
  gpu.allocator.check_invariants();
  gpu.free({middle});
  gpu.check_nothing_is_left();
}

// A simulated driver that can export memory. The descriptor that it returns is only a copy of
// stderr's descriptor.
class ExportingDriver final : public LockedDriver {
 public:
  using LockedDriver::LockedDriver;
  Status export_handle(Handle, int& descriptor) override {
    descriptor = ::dup(STDERR_FILENO);
    return Status::success;
  }
};

void export_and_close(ElasticAllocator& allocator, const Block* block) {
  for (const auto& piece : allocator.export_memory(block->address).pieces) {
    ::close(piece.descriptor);
  }
}

TEST(tiers_what_other_processes_have_stays_where_it_is) {
  constexpr RegionId kRegion = 1;
  SimulatedHost host(64_MiB);
  SimulatedDriver simulated(host, 16_MiB);
  ExportingDriver driver(simulated);
  HostPool pool(driver);
  ElasticAllocator allocator(driver, AllocatorConfig::parse("", {}));
  allocator.set_spill_policy(SpillPolicy::spill);

  Block* const wall = allocator.malloc(16_MiB, 0);
  Block* const sent = allocator.malloc(1_MiB, 0);
  Block* const beside = allocator.malloc(1_MiB, 0);  // in the same piece as `sent`
  Block* const other = allocator.malloc(4_MiB, 0);
  export_and_close(allocator, sent);
  allocator.free(wall);
  allocator.empty_cache();
  CHECK_EQUAL(allocator.rebalance(1_GiB), Bytes{4_MiB});
  CHECK_EQUAL(sent->shared, sent->size);
  CHECK_EQUAL(beside->shared, beside->size);
  CHECK_EQUAL(other->shared, Bytes{0});
  allocator.free(sent);  // now no other process has this memory
  CHECK_EQUAL(allocator.rebalance(1_GiB), Bytes{2_MiB});
  CHECK_EQUAL(beside->shared, Bytes{0});

  const auto malloc_in_region = [&] {
    const Placed placed(kRegion);
    return allocator.malloc(2_MiB, 0);
  };
  Block* const in_region = malloc_in_region();
  export_and_close(allocator, in_region);
  CHECK_THROWS(allocator.require_pausable(kRegion), std::invalid_argument);
  CHECK_THROWS(allocator.pause(kRegion, {&pool}), std::invalid_argument);
  CHECK(!allocator.is_paused(kRegion));
  allocator.check_invariants();
  allocator.free(in_region);
  Block* const again = malloc_in_region();
  CHECK_EQUAL(allocator.pause(kRegion, {&pool}), Bytes{2_MiB});
  CHECK_THROWS(allocator.export_memory(again->address), std::invalid_argument);
  CHECK_EQUAL(allocator.resume(kRegion), Bytes{2_MiB});
  allocator.check_invariants();
}

TEST(tiers_export_of_shared_pieces_is_refused_or_whole) {
  TieredGpu gpu(16_MiB, 64_MiB, SpillPolicy::spill);
  Block* const block = gpu.malloc(40_MiB);
  // The simulated driver cannot export memory.
  CHECK_THROWS(gpu.allocator.export_memory(block->address), DriverError);
  gpu.allocator.check_invariants();
}

// --- back to the card --------------------------------------------------------------------------

TEST(rebalance_brings_back_what_spilled_at_its_address) {
  TieredGpu gpu(64_MiB, 256_MiB, SpillPolicy::spill);
  Block* const wall = gpu.malloc(40_MiB);
  Block* const block = gpu.malloc(50_MiB);
  const Block* const wanted = gpu.malloc_shared(10_MiB);
  gpu.fill(block, 5);
  gpu.fill(wanted, 6);
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{0});  // no room
  gpu.free({wall});
  gpu.allocator.empty_cache();
  const Address address = block->address;
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{26_MiB});
  CHECK_EQUAL(block->shared, Bytes{0});
  CHECK_EQUAL(block->address, address);
  CHECK(gpu.holds(block, 5));
  CHECK(gpu.holds(wanted, 6));
  CHECK_EQUAL(wanted->shared, Bytes{10_MiB});
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{50_MiB});
  CHECK_EQUAL(gpu.driver.shared_used(), Bytes{10_MiB});
  CHECK_EQUAL(count_of(gpu.allocator.statistics().shared_reserved_bytes), Bytes{10_MiB});
  CHECK_EQUAL(count_of(gpu.allocator.statistics().shared_allocated_bytes), Bytes{10_MiB});
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{0});
}

TEST(rebalance_begins_with_what_lived_longest_and_moves_no_more_than_asked) {
  TieredGpu gpu(64_MiB, 8_GiB, SpillPolicy::spill);
  Block* const wall = gpu.malloc(64_MiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(gpu.malloc(8_MiB));
  gpu.free({blocks[0], wall});
  gpu.allocator.empty_cache();
  blocks[0] = gpu.malloc_in(1, 2_MiB);
  const auto shared = [&] {
    std::string text;
    for (std::size_t i = 1; i < 4; ++i) text += short_size(blocks[i]->shared) + ' ';
    return text;
  };
  CHECK_EQUAL(shared(), "8M 8M 8M ");
  CHECK_EQUAL(gpu.allocator.rebalance(11_MiB), Bytes{10_MiB});  // only whole pieces move
  CHECK_EQUAL(shared(), "0 6M 8M ");
  CHECK_EQUAL(gpu.allocator.rebalance(0), Bytes{0});
  gpu.allocator.set_limit(18_MiB);
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{6_MiB});
  CHECK_EQUAL(shared(), "0 0 8M ");
  gpu.allocator.set_limit(std::nullopt);
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{8_MiB});
  CHECK_EQUAL(shared(), "0 0 0 ");
  gpu.allocator.check_invariants();
}

TEST(rebalance_counts_a_piece_that_two_blocks_share_once) {
  TieredGpu gpu(16_MiB, 64_MiB, SpillPolicy::spill);
  Block* const wall = gpu.malloc(16_MiB);
  Block* const first = gpu.malloc(600_KiB);
  Block* const second = gpu.malloc(700_KiB);
  CHECK_EQUAL(gpu.driver.shared_used(), Bytes{2_MiB});
  gpu.fill(first, 1);
  gpu.fill(second, 2);
  gpu.free({wall});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{2_MiB});
  CHECK_EQUAL(first->shared + second->shared, Bytes{0});
  CHECK(gpu.holds(first, 1) && gpu.holds(second, 2));
  gpu.allocator.check_invariants();
}

TEST(rebalance_waits_for_the_work_on_what_it_moves) {
  TieredGpu gpu(16_MiB, 64_MiB, SpillPolicy::spill);
  Block* const wall = gpu.malloc(16_MiB);
  gpu.malloc(8_MiB);
  gpu.free({wall});
  gpu.allocator.empty_cache();
  gpu.driver.launch(3, 5e6);
  const double before = gpu.host.now_ns();
  // No whole piece fits into 1 MiB, so no piece moves, and the allocator waits for no work.
  CHECK_EQUAL(gpu.allocator.rebalance(1_MiB), Bytes{0});
  CHECK(gpu.host.now_ns() < before + 5e6);
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{8_MiB});
  CHECK(gpu.host.now_ns() >= before + 5e6);
}

// The driver refuses two `map` calls in a row: one that maps a block's new memory, then one that
// maps the block's old memory again to undo the move.
TEST(rebalance_that_cannot_be_undone_at_once_is_undone_later) {
  for (std::uint64_t position = 0; position < 30; ++position) {
    TieredGpu gpu(64_MiB, 256_MiB, SpillPolicy::spill);
    Block* const wall = gpu.malloc(60_MiB);
    Block* const block = gpu.malloc(40_MiB);
    gpu.fill(block, 5);
    gpu.free({wall});
    gpu.allocator.empty_cache();
    gpu.driver.inject({Call::map, position, 2, Status::out_of_memory});
    try {
      gpu.allocator.rebalance(1_GiB);
    } catch (const DriverError&) {
    }
    gpu.driver.clear_faults();
    gpu.allocator.check_invariants();
    gpu.allocator.empty_cache();
    CHECK(gpu.holds(block, 5));
    gpu.allocator.rebalance(1_GiB);
    CHECK_EQUAL(block->shared, Bytes{0});
    CHECK(gpu.holds(block, 5));
    gpu.free({block});
    gpu.check_nothing_is_left();
  }
}

// From some `map` call on, the driver refuses every mapping. So it also refuses to map back what
// the rebalance has unmapped. When the program frees the block, no memory of the block may be left,
// whether mapped or not.
TEST(rebalance_that_is_never_undone_leaves_nothing_behind) {
  for (const Bytes size : {2_MiB, 40_MiB}) {
    int lost = 0;
    for (std::uint64_t position = 0; position < 30; ++position) {
      TieredGpu gpu(64_MiB, 256_MiB, SpillPolicy::spill);
      Block* const wall = gpu.malloc(64_MiB);
      Block* const block = gpu.malloc(size);
      gpu.free({wall});
      gpu.allocator.empty_cache();
      const std::size_t mappings = gpu.driver.mappings();
      gpu.driver.inject({Call::map, position});
      try {
        gpu.allocator.rebalance(1_GiB);
      } catch (const DriverError&) {
      }
      if (gpu.driver.mappings() < mappings) ++lost;
      gpu.free({block});
      gpu.check_nothing_is_left();
    }
    CHECK(lost > 0);
  }
}

// Makes each driver call of a rebalance fail once. Every piece stays whole in one tier with its
// content, a second rebalance moves the rest, and no memory leaks.
TEST(rebalance_survives_every_driver_call_that_fails) {
  for (const Status status : {Status::failed, Status::out_of_memory}) {
    int failures = 0;
    for (const Call call : kMoveCalls) {
      for (std::uint64_t position = 0; position < 40; ++position) {
        TieredGpu gpu(64_MiB, 256_MiB, SpillPolicy::spill);
        Block* const wall = gpu.malloc(60_MiB);
        std::vector<Block*> blocks{gpu.malloc(10_MiB), gpu.malloc_in(1, 7_MiB), gpu.malloc(1_KiB)};
        for (std::size_t i = 0; i < blocks.size(); ++i) gpu.fill(blocks[i], i + 1);
        gpu.free({wall});
        gpu.allocator.empty_cache();
        const std::uint64_t calls = gpu.driver.calls(call);
        gpu.driver.inject({call, position, 1, status});
        try {
          gpu.allocator.rebalance(1_GiB);
        } catch (const DriverError&) {
          ++failures;
        }
        const bool was_called = gpu.driver.calls(call) > calls + position;
        gpu.driver.clear_faults();
        gpu.allocator.check_invariants();
        for (std::size_t i = 0; i < blocks.size(); ++i) CHECK(gpu.holds(blocks[i], i + 1));
        gpu.allocator.rebalance(1_GiB);
        gpu.allocator.check_invariants();
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          CHECK_EQUAL(blocks[i]->shared, Bytes{0});
          CHECK(gpu.holds(blocks[i], i + 1));
        }
        const std::size_t reservations = gpu.driver.reservations();
        gpu.allocator.rebalance(1_GiB);
        CHECK_EQUAL(gpu.driver.reservations(), reservations);
        for (Block* const block : blocks) gpu.free({block});
        gpu.check_nothing_is_left();
        if (!was_called) break;
      }
    }
    CHECK(failures > (status == Status::failed ? 20 : 0));
  }
}

}  // namespace plimsoll
