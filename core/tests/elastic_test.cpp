// Tests the elastic allocator: it moves memory between addresses, so that little memory lies idle.

#include "plimsoll/allocator/elastic/elastic.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "elastic_gpu.h"
#include "plimsoll/driver/locked.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr PoolId kPool{0, 1};

std::int64_t signed_of(Bytes size) { return static_cast<std::int64_t>(size); }

void work_on(ElasticGpu& gpu, StreamId stream, double milliseconds) {
  gpu.driver.launch(stream, milliseconds * 1e6);
}

double now_ms(const ElasticGpu& gpu) { return gpu.host.now_ns() * 1e-6; }

}  // namespace

// --- best fit ----------------------------------------------------------------------------------

TEST(elastic_rounds_requests_up_to_512_bytes) {
  ElasticGpu gpu(1_GiB);
  for (const auto& [requested, size] : std::map<Bytes, Bytes>{
           {1, 512}, {512, 512}, {513, 1_KiB}, {1_MiB + 1, 1_MiB + 512}, {77_MiB - 1, 77_MiB}}) {
    const Block* const block = gpu.malloc(requested);
    CHECK_EQUAL(block->size, size);
    CHECK_EQUAL(block->requested, requested);
    CHECK_EQUAL(block->address % 512, Address{0});
  }
}

TEST(elastic_takes_the_smallest_free_block_that_suffices) {
  ElasticGpu gpu(1_GiB);
  Block* const small = gpu.malloc(3_MiB);
  Block* const first_wall = gpu.malloc(2_MiB);
  Block* const large = gpu.malloc(9_MiB);
  Block* const second_wall = gpu.malloc(2_MiB);
  const Address at = small->address;
  gpu.free({large, small});
  const std::uint64_t created = gpu.driver.calls(Call::create);
  Block* const again = gpu.malloc(3_MiB - 512);
  CHECK_EQUAL(again->address, at);
  CHECK_EQUAL(gpu.driver.calls(Call::create), created);
  gpu.allocator.check_invariants();
  gpu.free({again, first_wall, second_wall});
  gpu.allocator.check_invariants();
}

TEST(elastic_merges_free_neighbours) {
  ElasticGpu gpu(1_GiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(gpu.malloc(4_MiB));
  const std::uint64_t created = gpu.driver.calls(Call::create);
  for (const std::size_t i : {1U, 3U, 5U, 7U, 0U, 2U, 4U, 6U}) gpu.free({blocks[i]});
  CHECK_EQUAL(gpu.allocator.largest_free_block(), Bytes{32_MiB});
  gpu.malloc(32_MiB);
  CHECK_EQUAL(gpu.driver.calls(Call::create), created);
  CHECK_EQUAL(gpu.allocator.moves(), std::uint64_t{0});
}

TEST(elastic_reserves_to_the_granule) {
  ElasticGpu gpu(1_GiB);
  gpu.malloc(100_MiB + 1);
  CHECK_EQUAL(gpu.reserved(), Bytes{102_MiB});
  gpu.malloc(100);
  CHECK_EQUAL(gpu.reserved(), Bytes{104_MiB});
}

TEST(elastic_small_blocks_never_pin_large_pieces) {
  ElasticGpu gpu(256_MiB);
  Block* const large = gpu.malloc(200_MiB);
  gpu.free({large});
  std::vector<Block*> small;
  for (int i = 0; i < 20; ++i) small.push_back(gpu.malloc(512));
  // All memory can serve a large request, except the granule that the small blocks share.
  gpu.malloc(250_MiB);
  gpu.allocator.check_invariants();
}

// --- memory that moves -------------------------------------------------------------------------

TEST(elastic_moves_free_pieces_before_it_creates_memory) {
  ElasticGpu gpu(1_GiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(gpu.malloc(10_MiB));
  for (std::size_t i = 0; i < 10; i += 2) gpu.free({blocks[i]});
  const Bytes reserved = gpu.reserved();
  gpu.malloc(50_MiB);
  CHECK_EQUAL(gpu.reserved(), reserved);
  CHECK_EQUAL(gpu.driver.dedicated_used(), reserved);
  CHECK(gpu.allocator.moves() >= 5);
  gpu.allocator.check_invariants();
}

TEST(elastic_loses_no_free_memory_to_fragmentation) {
  ElasticGpu gpu(256_MiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(gpu.malloc(4_MiB));
  for (std::size_t i = 0; i < 64; i += 2) gpu.free({blocks[i]});
  Block* const all = gpu.malloc(128_MiB);
  CHECK_EQUAL(all->size, Bytes{128_MiB});
  CHECK_THROWS(gpu.malloc(2_MiB), OutOfMemory);
  gpu.allocator.check_invariants();
}

TEST(elastic_never_waits_for_a_busy_stream_to_use_its_own_memory) {
  ElasticGpu gpu(256_MiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(gpu.malloc(16_MiB));
  work_on(gpu, 0, 1000);
  for (std::size_t i = 0; i < 16; i += 2) gpu.free({blocks[i]});
  gpu.malloc(100_MiB);
  CHECK_EQUAL(gpu.driver.calls(Call::synchronize), std::uint64_t{0});
  CHECK(now_ms(gpu) < 500);
  gpu.allocator.check_invariants();
}

TEST(elastic_gives_neighbouring_pieces_back_in_one_call) {
  ElasticGpu gpu(1_GiB);
  Block* const block = gpu.malloc(200_MiB);
  const std::int64_t pieces = gpu.allocator.statistics().num_device_alloc;
  CHECK(pieces > 1);
  gpu.free({block});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.calls(Call::unmap), 1u);
  CHECK_EQUAL(gpu.allocator.statistics().num_device_free, pieces);
  CHECK_EQUAL(gpu.reserved(), 0u);
  gpu.allocator.check_invariants();
}

// A moved piece also stays mapped at its old address until the stream's work is done, because
// queued kernels may still use that address.
TEST(elastic_reuses_an_address_of_a_moved_piece_only_after_the_work_on_it) {
  ElasticGpu gpu(1_GiB);
  Block* const first = gpu.malloc(20_MiB);
  Block* const wall = gpu.malloc(2_MiB);
  const AddressRange old{first->address, first->size};
  work_on(gpu, 0, 100);
  gpu.free({first});
  Block* const grown = gpu.malloc(60_MiB);
  CHECK(gpu.allocator.moves() > 0);
  const std::uint64_t unmapped = gpu.driver.calls(Call::unmap);
  const auto overlaps = [&](const Block* block) {
    return block->address < old.end() && old.address < block->address + block->size;
  };
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(gpu.malloc(20_MiB));
    CHECK(!overlaps(blocks.back()));
    gpu.allocator.poll();
  }
  CHECK_EQUAL(gpu.driver.calls(Call::unmap), unmapped);
  gpu.allocator.check_invariants();
  gpu.free({wall, grown});
}

// Runs one step of a program. In each step the tensors have other sizes than in the step before it,
// so they do not fit into the places that the earlier tensors had.
void run_step(ElasticGpu& gpu, int step) {
  const Bytes unit = (8 + static_cast<Bytes>(step % 3)) * 1_MiB;
  std::vector<Block*> forward;
  std::vector<Block*> backward;
  for (Bytes i = 1; i <= 6; ++i) forward.push_back(gpu.malloc(unit * (i % 3 + 2)));
  while (!forward.empty()) {
    backward.push_back(gpu.malloc(forward.back()->size / 2 + unit));
    gpu.free({forward.back()});
    forward.pop_back();
  }
  for (Block* const block : backward) gpu.free({block});
}

TEST(elastic_program_that_repeats_itself_calls_the_driver_no_more) {
  ElasticGpu gpu(4_GiB);
  std::vector<Block*> walls;
  for (int i = 0; i < 6; ++i) {
    run_step(gpu, i);
    walls.push_back(gpu.malloc(3_MiB));
  }
  for (int i = 0; i < 36; ++i) run_step(gpu, i);
  const std::uint64_t before = gpu.mapping_calls();
  const std::uint64_t moves = gpu.allocator.moves();
  for (int i = 0; i < 12; ++i) run_step(gpu, i);
  CHECK_EQUAL(gpu.mapping_calls(), before);
  CHECK(gpu.allocator.moves() > moves);
  gpu.allocator.check_invariants();
  for (Block* const wall : walls) gpu.free({wall});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.mappings(), std::size_t{0});
  CHECK_EQUAL(gpu.driver.handles(), std::size_t{0});
}

TEST(elastic_takes_pieces_of_another_stream_only_after_its_work) {
  ElasticGpu gpu(256_MiB);
  Block* const other = gpu.malloc(100_MiB, 1);
  work_on(gpu, 1, 100);
  gpu.free({other});
  gpu.malloc(100_MiB, 2);  // takes new memory, because stream 1 still works on the free block
  CHECK_EQUAL(gpu.allocator.moves(), std::uint64_t{0});
  CHECK_EQUAL(gpu.reserved(), Bytes{200_MiB});
  CHECK(now_ms(gpu) < 50);
  gpu.host.advance(200e6);
  gpu.malloc(100_MiB, 2);  // takes the free block's pieces, because stream 1 is idle
  CHECK(gpu.allocator.moves() > 0);
  CHECK_EQUAL(gpu.reserved(), Bytes{200_MiB});
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, std::int64_t{0});
  gpu.allocator.check_invariants();
}

TEST(elastic_waits_for_other_streams_before_it_fails) {
  ElasticGpu gpu(256_MiB);
  Block* const other = gpu.malloc(200_MiB, 1);
  work_on(gpu, 1, 100);
  gpu.free({other});
  gpu.malloc(200_MiB, 2);
  CHECK(now_ms(gpu) >= 100);
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, std::int64_t{1});
  CHECK_EQUAL(gpu.allocator.statistics().num_sync_all_streams, std::int64_t{1});
  CHECK_EQUAL(gpu.allocator.statistics().num_ooms, std::int64_t{0});
}

TEST(elastic_reuses_addresses) {
  ElasticGpu gpu(512_MiB);
  Random random(1);
  std::vector<Block*> live;
  Bytes bytes = 0;
  for (int i = 0; i < 100'000; ++i) {
    while (bytes > 200_MiB || (!live.empty() && random.one_in(2))) {
      Block*& block = random.pick(live);
      bytes -= block->size;
      gpu.allocator.free(block);
      block = live.back();
      live.pop_back();
    }
    live.push_back(gpu.malloc(random.between(1_MiB, 100_MiB)));
    bytes += live.back()->size;
    if (i % 4 == 0) work_on(gpu, 0, 0.5);
    if (i % 8 == 0) gpu.host.advance(1e6);
  }
  CHECK(gpu.allocator.moves() > 100);
  CHECK(gpu.driver.calls(Call::reserve) <= 8);
  CHECK(gpu.driver.reserved_addresses() <= 8 * 512_MiB);
  gpu.allocator.check_invariants();
}

// --- other streams -----------------------------------------------------------------------------

TEST(elastic_keeps_a_block_until_recorded_streams_are_done) {
  ElasticGpu gpu(1_GiB);
  Block* const block = gpu.malloc(8_MiB);
  const Address at = block->address;
  gpu.allocator.record_stream(block, 0);  // the block's own stream, so there is nothing to wait for
  gpu.allocator.record_stream(block, 3);
  gpu.allocator.record_stream(block, 3);
  work_on(gpu, 3, 10);
  gpu.free({block});
  CHECK_EQUAL(gpu.driver.calls(Call::record), std::uint64_t{1});
  const Statistics& statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.allocated_bytes.all.current, 0);
  CHECK_EQUAL(statistics.active_bytes.all.current, signed_of(8_MiB));
  CHECK(gpu.allocator.segments()[0].blocks[0].state == BlockState::active_pending_free);
  CHECK(gpu.malloc(8_MiB)->address != at);
  gpu.host.advance(20e6);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.allocator.statistics().active_bytes.all.current, signed_of(8_MiB));
  CHECK_EQUAL(gpu.malloc(8_MiB)->address, at);
  gpu.allocator.check_invariants();
}

TEST(elastic_records_nothing_if_one_stream_of_a_free_cannot_be_recorded) {
  ElasticGpu gpu(1_GiB);
  Block* const block = gpu.malloc(8_MiB);
  gpu.allocator.record_stream(block, 3);
  gpu.allocator.record_stream(block, 4);
  gpu.driver.inject({Call::record, 1, 1, Status::failed});
  CHECK_THROWS(gpu.allocator.free(block), DriverError);
  CHECK_EQUAL(gpu.driver.events(), std::size_t{0});
  CHECK(block->allocated);
  gpu.allocator.check_invariants();
  gpu.allocator.free(block);
  CHECK_EQUAL(gpu.driver.events(), std::size_t{2});
}

// --- private pools and captures ----------------------------------------------------------------

TEST(elastic_private_pool_keeps_its_memory_while_it_is_held) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  Block* const block = gpu.malloc(200_MiB);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.free({block});
  CHECK_THROWS(gpu.malloc(100_MiB), OutOfMemory);
  gpu.allocator.empty_cache();
  gpu.allocator.empty_cache(kPool);
  CHECK_EQUAL(gpu.reserved(), Bytes{200_MiB});
  CHECK_EQUAL(gpu.allocator.pool_uses(kPool), 1);
  gpu.allocator.release_pool(kPool);
  gpu.malloc(100_MiB);
  CHECK(gpu.allocator.moves() > 0);
  gpu.allocator.check_invariants();
  gpu.allocator.empty_cache();
  CHECK(gpu.reserved() < 132_MiB);  // the last piece of the live 100 MiB may be larger than needed
}

TEST(elastic_private_pool_takes_free_memory_of_the_default_pool) {
  ElasticGpu gpu(256_MiB);
  gpu.free({gpu.malloc(200_MiB, 1)});
  gpu.malloc(2_MiB);  // polls, and finds stream 1 idle
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  const Block* const block = gpu.malloc(200_MiB);
  gpu.allocator.end_allocate_to_pool(kPool);
  CHECK_EQUAL(block->size, Bytes{200_MiB});
  CHECK(gpu.allocator.moves() > 0);
  gpu.allocator.check_invariants();
}

TEST(elastic_records_and_queries_no_event_in_a_capture) {
  ElasticGpu gpu(256_MiB);
  Block* const first = gpu.malloc(40_MiB);
  Block* const second = gpu.malloc(40_MiB, 1);
  gpu.allocator.record_stream(first, 2);
  gpu.free({second});
  const std::uint64_t before = gpu.event_calls();
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.free({first});  // the free stays pending until the capture ends
  Block* const inside = gpu.malloc(60_MiB);
  gpu.free({inside});
  gpu.malloc(100_MiB);
  gpu.allocator.poll();
  CHECK_THROWS(gpu.malloc(200_MiB), OutOfMemory);
  CHECK_EQUAL(gpu.event_calls(), before);
  CHECK(first->is_active());
  gpu.allocator.check_invariants();
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.allocator.poll();
  CHECK(gpu.event_calls() > before);
  CHECK_EQUAL(gpu.allocator.statistics().active.all.current, 1);
  gpu.allocator.check_invariants();
}

// Asking the driver for the free memory takes as long as mapping a piece.
TEST(elastic_asks_once_how_much_is_free_for_all_pieces_of_a_request) {
  class AskedDriver : public LockedDriver {
   public:
    using LockedDriver::LockedDriver;
    [[nodiscard]] MemoryInfo memory_info() const override {
      ++asked;
      return LockedDriver::memory_info();
    }
    mutable int asked = 0;
  };
  SimulatedHost host(0);
  SimulatedDriver gpu(host, 4_GiB);
  AskedDriver driver(gpu);
  ElasticAllocator allocator(driver, AllocatorConfig{}, TorchVersion{});
  for (const Bytes size : {1_GiB, 512_MiB, 2_GiB}) {
    driver.asked = 0;
    static_cast<void>(allocator.malloc(size, 0));
    CHECK(driver.asked <= 4);
  }
  driver.asked = 0;
  CHECK_THROWS(allocator.malloc(2_GiB, 0), OutOfMemory);
  CHECK(driver.asked <= 8);
  CHECK(gpu.calls(Call::create) > 20);
}

TEST(elastic_makes_some_hundred_pieces_for_a_first_request_of_many_gigabytes) {
  ElasticGpu gpu(80_GiB);
  gpu.malloc(16_MiB);
  const std::uint64_t before = gpu.driver.calls(Call::create);
  gpu.malloc(6_GiB);
  CHECK(gpu.driver.calls(Call::create) - before <= 512);
}

TEST(elastic_takes_no_addresses_for_a_request_above_all_memory) {
  ElasticGpu gpu(1_GiB);
  gpu.free({gpu.malloc(64_MiB)});
  const Bytes before = gpu.driver.reserved_addresses();
  CHECK_THROWS(gpu.malloc(1_GiB + 1), OutOfMemory);
  CHECK_THROWS(gpu.malloc(4096_GiB), OutOfMemory);
  CHECK_EQUAL(gpu.driver.reserved_addresses(), before);
  gpu.free({gpu.malloc(1_GiB)});
}

TEST(elastic_use_in_a_capture_does_not_outlast_its_block) {
  ElasticGpu gpu(256_MiB);
  Block* const first = gpu.malloc(4_MiB);
  gpu.allocator.begin_allocate_to_pool(kPool, Allocator::only_on(9));
  gpu.allocator.record_stream(first, 7);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.free({first});
  gpu.allocator.poll();
  Block* const second = gpu.malloc(4_MiB);  // may get the Block object that `first` had
  gpu.allocator.record_stream(second, 7);
  gpu.driver.hold(7);
  gpu.allocator.begin_allocate_to_pool(kPool, Allocator::only_on(9));
  gpu.free({second});
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.allocator.statistics().active.all.current, 1);
}

TEST(elastic_sends_to_a_pool_what_its_filter_names) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.begin_allocate_to_pool(kPool, Allocator::only_on(5));
  gpu.malloc(3_MiB, 5);
  gpu.malloc(3_MiB, 6);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.malloc(3_MiB, 5);
  std::map<std::pair<StreamId, PoolId>, int> found;
  for (const SegmentInfo& segment : gpu.allocator.segments())
    ++found[{segment.stream, segment.pool}];
  CHECK_EQUAL(found.size(), std::size_t{3});
  CHECK(found.contains({5, kPool}) && found.contains({6, PoolId{}}) &&
        found.contains({5, PoolId{}}));
}

TEST(elastic_no_split_pool_gives_whole_blocks) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.use_pool(kPool);
  gpu.allocator.set_pool_option(kPool, PoolOption::no_split, true);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  for (const Bytes size : {Bytes{6_MiB}, Bytes{50_MiB}, Bytes{3_MiB}, Bytes{512}}) {
    Block* const block = gpu.malloc(size);
    CHECK(block->size >= size);
    CHECK_EQUAL(block->size % kGranule, Bytes{0});
    gpu.allocator.check_invariants();
    const Address at = block->address;
    const Bytes whole = block->size;
    gpu.free({block});
    gpu.allocator.check_invariants();
    Block* const again = gpu.malloc(size);
    CHECK(again->address == at && again->size == whole);
  }
  gpu.allocator.end_allocate_to_pool(kPool);
}

TEST(elastic_no_split_request_is_never_made_of_neighbours) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.use_pool(kPool);
  gpu.allocator.set_pool_option(kPool, PoolOption::no_split, true);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  Block* const first = gpu.malloc(2_MiB);
  Block* const second = gpu.malloc(2_MiB);
  gpu.malloc(2_MiB);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.free({first});
  gpu.allocator.release_pool(kPool);
  gpu.allocator.release_pool(kPool);
  gpu.allocator.empty_cache(kPool);  // unmaps the addresses of `first`, which lie below `second`
  gpu.free({second});
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  CHECK_EQUAL(gpu.malloc(4_MiB)->size, Bytes{4_MiB});
  gpu.allocator.check_invariants();
}

TEST(elastic_arena_of_a_no_split_pool_splits_again_in_another_pool) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.allocator.set_pool_option(kPool, PoolOption::no_split, true);
  Block* const block = gpu.malloc(512);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.free({block});
  gpu.allocator.release_pool(kPool);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.malloc(512, 5)->size, Bytes{512});
}

TEST(elastic_pool_for_need_serves_what_the_driver_refuses) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  Block* const spare = gpu.malloc(200_MiB);
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.free({spare});
  CHECK_THROWS(gpu.malloc(100_MiB), OutOfMemory);
  gpu.allocator.set_pool_option(kPool, PoolOption::use_on_oom, true);
  CHECK_EQUAL(gpu.malloc(100_MiB)->size, Bytes{100_MiB});
  gpu.allocator.set_pool_option(kPool, PoolOption::use_on_oom, false);
  CHECK_THROWS(gpu.malloc(100_MiB), OutOfMemory);
  gpu.allocator.check_invariants();
}

TEST(elastic_pool_that_is_misused_is_left_as_it_was) {
  ElasticGpu gpu(256_MiB);
  ElasticAllocator& allocator = gpu.allocator;
  CHECK_THROWS(allocator.begin_allocate_to_pool({}, {}), std::invalid_argument);
  CHECK_THROWS(allocator.end_allocate_to_pool(kPool), std::invalid_argument);
  CHECK_THROWS(allocator.release_pool(kPool), std::invalid_argument);
  allocator.begin_allocate_to_pool(kPool, {});
  CHECK_THROWS(allocator.begin_allocate_to_pool(kPool, {}), std::invalid_argument);
  allocator.end_allocate_to_pool(kPool);
  allocator.release_pool(kPool);
  CHECK_THROWS(allocator.release_pool(kPool), std::invalid_argument);
  CHECK_EQUAL(allocator.pool_uses(kPool), 0);
}

// If empty_cache fails, a released pool may keep mappings. A later empty_cache removes them.
TEST(elastic_pool_is_emptied_again_after_a_failure) {
  for (const Call call : {Call::record, Call::synchronize, Call::unmap}) {
    ElasticGpu gpu(256_MiB);
    gpu.allocator.begin_allocate_to_pool(kPool, {});
    Block* const block = gpu.malloc(10_MiB, 1);
    gpu.allocator.end_allocate_to_pool(kPool);
    gpu.free({block});
    gpu.allocator.release_pool(kPool);
    Block* const mover = gpu.malloc(10_MiB, 2);
    gpu.driver.inject({call, 0, 1, Status::failed});
    message_of<DriverError>([&] { return gpu.allocator.empty_cache(), 0; });
    gpu.driver.clear_faults();
    gpu.allocator.check_invariants();
    gpu.free({mover});
    gpu.allocator.poll();
    gpu.allocator.empty_cache();
    gpu.allocator.check_invariants();
    CHECK_EQUAL(gpu.driver.mappings(), std::size_t{0});
    CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  }
}

// --- blocks at given places --------------------------------------------------------------------

TEST(elastic_cuts_a_block_at_a_place_out_of_a_free_one) {
  ElasticGpu gpu(1_GiB);
  Block* const all = gpu.malloc(20_MiB);
  const Address at = all->address;
  gpu.free({all});
  Block* const middle = gpu.allocator.malloc_at(at + 4_MiB, 6_MiB + 512, 0, {});
  CHECK(middle->address == at + 4_MiB && middle->size == 6_MiB + 512);
  gpu.allocator.check_invariants();
  const auto refuses = [&](Address address, Bytes size, StreamId stream, PoolId pool) {
    CHECK_THROWS(gpu.allocator.malloc_at(address, size, stream, pool), std::invalid_argument);
  };
  refuses(at + 4_MiB, 512, 0, {});         // in use
  refuses(at, 5_MiB, 0, {});               // partly in use
  refuses(at, 512, 1, {});                 // belongs to another stream
  refuses(at, 512, 0, kPool);              // there is no such pool
  refuses(at, 100, 0, {});                 // no block ends there
  refuses(at + 1, 512, 0, {});             // no block begins there
  refuses(at, 0, 0, {});                   // no bytes
  refuses(at + 16_MiB, ~Bytes{0}, 0, {});  // beyond all memory
  refuses(at + 20_MiB, 512, 0, {});        // no memory is mapped at this address
  gpu.free({middle});
  CHECK_EQUAL(gpu.allocator.largest_free_block(), Bytes{20_MiB});
  gpu.allocator.check_invariants();
}

// --- limits and out of memory ------------------------------------------------------------------

TEST(elastic_stays_below_its_limit) {
  ElasticGpu gpu(1_GiB);
  gpu.allocator.set_limit(100_MiB);
  CHECK_EQUAL(*gpu.allocator.limit(), Bytes{100_MiB});
  Block* const most = gpu.malloc(100_MiB);
  CHECK_THROWS(gpu.malloc(512), OutOfMemory);
  gpu.free({most});
  gpu.malloc(60_MiB, 1);  // takes memory that stream 0 has freed
  CHECK(gpu.reserved() <= 100_MiB);
  gpu.allocator.set_limit(std::nullopt);
  gpu.malloc(500_MiB);
  gpu.allocator.check_invariants();
}

TEST(elastic_leaves_almost_nothing_over_near_its_limit) {
  ElasticGpu gpu(64_GiB);
  gpu.allocator.set_limit(512_MiB);
  std::vector<Block*> large;
  std::vector<Block*> live;
  for (int i = 0; i < 16; ++i) {  // each large block will leave a hole beside a live block
    large.push_back(gpu.malloc(28_MiB));
    live.push_back(gpu.malloc(2_MiB));
  }
  for (Block* const block : large) gpu.free({block});
  // In each hole, at most one granule at each end stays unused.
  CHECK(gpu.malloc(480_MiB - 16 * 4_MiB) != nullptr);
  CHECK(gpu.reserved() <= 512_MiB);
  gpu.allocator.check_invariants();
}

TEST(elastic_takes_its_limit_from_the_configuration) {
  ElasticGpu gpu(1_GiB, "per_process_memory_fraction:0.25", {2, 10});
  CHECK_EQUAL(*gpu.allocator.limit(), Bytes{256_MiB});
}

TEST(elastic_failed_request_leaves_all_as_it_was) {
  ElasticGpu gpu(256_MiB);
  Block* const first = gpu.malloc(100_MiB);
  Block* const second = gpu.malloc(50_MiB, 1);
  gpu.free({second});
  const std::string before = describe(gpu.allocator.segments());
  std::string message;
  for (const Bytes size : {Bytes{160_MiB}, Bytes{1024_GiB}, Bytes{1} << 52, ~Bytes{0}}) {
    message = message_of<OutOfMemory>([&] { return gpu.malloc(size); });
    CHECK(!message.empty());
    CHECK_EQUAL(describe(gpu.allocator.segments()), before);
    CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{150_MiB});
    gpu.allocator.check_invariants();
  }
  CHECK_EQUAL(gpu.allocator.statistics().num_ooms, std::int64_t{4});
  CHECK(gpu.malloc(150_MiB, 1) != nullptr);
  gpu.free({first});
}

TEST(elastic_error_says_what_was_asked_and_what_there_is) {
  ElasticGpu gpu(256_MiB);
  gpu.malloc(100_MiB);
  gpu.allocator.set_limit(200_MiB);
  try {
    gpu.malloc(150_MiB - 100);
    CHECK(false);
  } catch (const OutOfMemory& error) {
    const OutOfMemoryReport& report = error.report();
    CHECK_EQUAL(report.requested, Bytes{150_MiB - 100});
    CHECK_EQUAL(report.tried, Bytes{150_MiB});
    CHECK_EQUAL(report.device_total, Bytes{256_MiB});
    CHECK_EQUAL(report.device_free, Bytes{156_MiB});
    CHECK_EQUAL(report.allocated, Bytes{100_MiB});
    CHECK_EQUAL(report.reserved, Bytes{100_MiB});
    CHECK(report.limit == Bytes{200_MiB});
    const std::string text = error.what();
    CHECK(text.starts_with("CUDA out of memory. Tried to allocate 150.00 MiB."));
    CHECK(text.find("200.00 MiB allowed") != text.npos);
  }
}

// --- returning memory to the driver ------------------------------------------------------------

TEST(elastic_empty_cache_returns_all_that_is_free) {
  ElasticGpu gpu(1_GiB);
  Block* const kept = gpu.malloc(3_MiB);
  std::vector<Block*> blocks;
  for (StreamId stream = 0; stream < 4; ++stream) {
    for (const Bytes size : {Bytes{512}, Bytes{900_KiB}, Bytes{30_MiB}}) {
      blocks.push_back(gpu.malloc(size, stream));
    }
    work_on(gpu, stream, 10);
  }
  gpu.allocator.record_stream(blocks[5], 7);
  work_on(gpu, 7, 20);
  for (Block* const block : blocks) gpu.free({block});
  gpu.allocator.empty_cache();
  gpu.allocator.check_invariants();
  CHECK(now_ms(gpu) >= 20);
  CHECK_EQUAL(gpu.driver.dedicated_used(), gpu.reserved());
  CHECK(gpu.reserved() <= 32_MiB);  // only the piece with the live block is left
  gpu.free({kept});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  CHECK_EQUAL(gpu.driver.mappings(), std::size_t{0});
  CHECK_EQUAL(gpu.driver.events(), std::size_t{0});
  CHECK(gpu.allocator.segments().empty());
  gpu.allocator.check_invariants();
}

TEST(elastic_offers_a_handle_again_that_the_driver_refused) {
  ElasticGpu gpu(256_MiB);
  Block* const first = gpu.malloc(4_MiB);
  Block* const second = gpu.malloc(32_MiB);
  gpu.free({first, second});
  gpu.driver.inject({Call::release, 0, 1, Status::failed});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
}

TEST(elastic_failure_of_a_mapping_leaves_no_memory_behind) {
  for (const Call call : {Call::reserve, Call::create, Call::map, Call::set_access}) {
    for (const Status status : {Status::out_of_memory, Status::failed}) {
      for (std::uint64_t after = 0; after < 3; ++after) {
        ElasticGpu gpu(256_MiB);
        gpu.driver.inject({call, after, 100, status});
        try {
          gpu.malloc(63_MiB);
        } catch (const OutOfMemory&) {
          CHECK(status == Status::out_of_memory);
        } catch (const DriverError&) {
          CHECK(status == Status::failed || call == Call::reserve);
        }
        gpu.driver.clear_faults();
        gpu.allocator.check_invariants();
        CHECK_EQUAL(gpu.driver.dedicated_used(), gpu.reserved());
        gpu.malloc(63_MiB);
        gpu.allocator.check_invariants();
      }
    }
  }
}

TEST(elastic_export_that_the_driver_refuses_leaves_nothing) {
  ElasticGpu gpu(256_MiB);
  Block* const block = gpu.malloc(40_MiB);
  CHECK_THROWS(gpu.allocator.export_memory(block->address), DriverError);
  CHECK_THROWS(gpu.allocator.export_memory(block->address + 512), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.export_memory(12345), std::invalid_argument);
  gpu.allocator.check_invariants();
  gpu.free({block});
  CHECK_THROWS(gpu.allocator.export_memory(block->address), std::invalid_argument);
}

// --- lookup by address, and reports -------------------------------------------------------------

TEST(elastic_serves_by_address) {
  ElasticGpu gpu(256_MiB);
  ProgramAllocator& live = gpu.allocator;
  const Address first = live.allocate(3_MiB - 100, 7);
  const Address second = live.allocate(100, 8);
  for (const Bytes offset : {Bytes{0}, Bytes{1}, Bytes{3_MiB - 101}}) {
    const std::optional<Location> found = live.locate(first + offset);
    CHECK(found && found->block == first && found->block_size == 3_MiB);
    CHECK(found && found->requested == 3_MiB - 100 && found->stream == 7 && found->is_virtual);
  }
  CHECK(!live.locate(first + 3_MiB).has_value());
  CHECK(!live.locate(42).has_value());
  CHECK(live.record_stream(first, 8));
  CHECK(!live.record_stream(first + 512, 8));
  CHECK(!live.free(first + 512));
  CHECK(!live.free(42));
  CHECK(live.free(first) && !live.free(first));
  CHECK(live.free(second) && !live.free(second));
  CHECK(!live.locate(second).has_value());
}

TEST(elastic_segments_are_stretches_of_memory_by_address) {
  ElasticGpu gpu(256_MiB);
  Block* const first = gpu.malloc(3_MiB, 1);
  Block* const second = gpu.malloc(4_MiB + 512, 1);
  gpu.malloc(100, 1);
  gpu.malloc(5_MiB, 2);
  gpu.free({first});
  Address end = 0;
  Bytes total = 0;
  for (const SegmentInfo& segment : gpu.allocator.segments()) {
    CHECK(segment.address >= end);
    CHECK(segment.expandable);
    Address at = segment.address;
    for (const BlockInfo& block : segment.blocks) {
      CHECK_EQUAL(block.address, at);
      at += block.size;
      if (block.address == first->address) CHECK(block.state == BlockState::inactive);
      if (block.address == second->address) {
        CHECK(block.state == BlockState::active_allocated && block.requested == 4_MiB + 512);
        CHECK(segment.stream == 1 && !segment.small);
      }
    }
    end = segment.address + segment.total_size;
    CHECK_EQUAL(at, end);
    total += segment.total_size;
  }
  CHECK_EQUAL(total, gpu.reserved());
}

TEST(elastic_numbers_segments_in_the_order_in_which_they_were_made) {
  ElasticGpu gpu(256_MiB);
  gpu.free({gpu.malloc(4_MiB, 1)});
  gpu.allocator.empty_cache();  // stream 1 keeps its addresses, which come before those of stream 2
  Block* const first = gpu.malloc(4_MiB, 2);
  Block* const second = gpu.malloc(4_MiB, 1);
  Block* const third = gpu.malloc(100, 2);
  CHECK(second->address < first->address);
  std::vector<SegmentInfo> segments = gpu.allocator.segments();
  std::ranges::sort(segments, {}, &SegmentInfo::number);
  CHECK_EQUAL(segments.size(), 3U);
  CHECK_EQUAL(segments[0].address, first->address);
  CHECK_EQUAL(segments[1].address, second->address);
  CHECK_EQUAL(segments[2].address, third->address);
  const std::uint64_t number = segments[0].number;
  gpu.malloc(8_MiB, 2);  // a segment that grows keeps its number
  segments = gpu.allocator.segments();
  CHECK_EQUAL(std::ranges::min(segments, {}, &SegmentInfo::number).number, number);
}

TEST(elastic_counts_what_it_does) {
  ElasticGpu gpu(256_MiB);
  Block* const a = gpu.malloc(10_MiB, 1);
  Block* const b = gpu.malloc(20_MiB, 2);
  Block* const c = gpu.malloc(100, 3);
  gpu.free({b});
  Block* const d = gpu.malloc(5_MiB, 1);
  Statistics statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.allocated_bytes.all.current, signed_of(15_MiB + 512));
  CHECK_EQUAL(statistics.allocated_bytes.all.peak, signed_of(30_MiB + 512));
  CHECK_EQUAL(statistics.allocated_bytes.small_pool.peak, 512);
  CHECK_EQUAL(statistics.allocated_bytes.all.allocated, signed_of(35_MiB + 512));
  CHECK_EQUAL(statistics.allocated_bytes.all.freed, signed_of(20_MiB));
  CHECK_EQUAL(statistics.requested_bytes.all.current, signed_of(15_MiB + 100));
  CHECK_EQUAL(statistics.allocation.all.peak, 3);
  gpu.allocator.reset_peak_statistics();
  gpu.allocator.reset_accumulated_statistics();
  gpu.free({a, c, d});
  statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.allocated_bytes.all.current, 0);
  CHECK_EQUAL(statistics.allocated_bytes.all.peak, signed_of(15_MiB + 512));
  CHECK_EQUAL(statistics.allocated_bytes.all.allocated, 0);
  CHECK_EQUAL(statistics.allocated_bytes.all.freed, signed_of(15_MiB + 512));
  CHECK_EQUAL(statistics.reserved_bytes.all.current, signed_of(gpu.driver.dedicated_used()));
}

TEST(elastic_peaks_over_several_streams_are_exact) {
  ElasticGpu gpu(1_GiB);
  Random random(3);
  std::vector<Block*> live;
  std::int64_t current = 0;
  std::int64_t peak = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 200 && random.below(100) < 52) {
      live.push_back(gpu.malloc(random.between(1, 2_MiB), random.below(6)));
      current += signed_of(live.back()->size);
    } else if (!live.empty()) {
      Block*& block = random.pick(live);
      current -= signed_of(block->size);
      gpu.allocator.free(block);
      block = live.back();
      live.pop_back();
    }
    peak = std::max(peak, current);
    if (i % 1000 == 999) {
      CHECK_EQUAL(gpu.allocator.statistics().allocated_bytes.all.peak, peak);
      CHECK_EQUAL(gpu.allocator.statistics().allocated_bytes.all.current, current);
    }
    if (i % 5000 == 4999) gpu.allocator.reset_peak_statistics(), peak = current;
  }
}

TEST(elastic_history_tells_of_moves_as_of_mappings) {
  ElasticGpu gpu(256_MiB);
  gpu.allocator.history().record_up_to(1000);
  gpu.free({gpu.malloc(20_MiB, 1)});
  gpu.malloc(20_MiB, 2);
  const History& history = gpu.allocator.history();
  Bytes mapped = 0;
  Bytes unmapped = 0;
  for (std::size_t i = 0; i < history.size(); ++i) {
    if (history[i].action == Action::segment_map) mapped += history[i].size;
    if (history[i].action == Action::segment_unmap) unmapped += history[i].size;
  }
  CHECK_EQUAL(mapped - unmapped, gpu.reserved());
  CHECK_EQUAL(gpu.allocator.statistics().num_device_alloc,
              static_cast<std::int64_t>(gpu.driver.calls(Call::create)));
}

// --- fragments ---------------------------------------------------------------------------------

TEST(elastic_fragments_are_free_parts_of_pieces_that_are_in_use) {
  ElasticGpu gpu(1_GiB);
  const auto fragments = [&] { return *gpu.allocator.fragments(); };
  const auto free_bytes = [&] {
    const Statistics now = gpu.allocator.statistics();
    return static_cast<Bytes>(now.reserved_bytes.all.current - now.active_bytes.all.current);
  };
  CHECK_EQUAL(fragments(), Bytes{0});
  std::vector<Block*> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(gpu.malloc(700_KiB));
  CHECK_EQUAL(fragments(), free_bytes());  // only the end of the last piece is free
  for (std::size_t i = 1; i < 8; ++i) gpu.free({blocks[i]});
  const Bytes before = fragments();
  CHECK(0 < before && before < free_bytes());
  gpu.allocator.empty_cache();
  CHECK_EQUAL(free_bytes(), before);  // all other free memory went to the driver
  CHECK_EQUAL(fragments(), before);
  gpu.free({blocks[0], blocks[8]});
  CHECK_EQUAL(fragments(), Bytes{0});
}

TEST(elastic_fragments_are_unknown_where_counting_them_would_take_long) {
  ElasticGpu gpu(1_GiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 10'000; ++i) blocks.push_back(gpu.malloc(512));
  CHECK(gpu.allocator.fragments());
  for (std::size_t i = 0; i < blocks.size(); i += 2) gpu.free({blocks[i]});
  CHECK(!gpu.allocator.fragments());
}

}  // namespace plimsoll
