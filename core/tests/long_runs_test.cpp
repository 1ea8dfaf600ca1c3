// Tests that a program can repeat its actions for days and leak no memory. It makes and drops pools
// and graphs, pauses regions that graphs use, and makes backups of every size.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/elastic/apply/paused_memory.h"
#include "plimsoll/allocator/elastic/elastic.h"
#include "support.h"
#include "tiered_gpu.h"

namespace plimsoll {
namespace {

constexpr RegionId kRegion = 1;
constexpr PoolId kGraph{0, 7};

// Allocates a block from a pool, as the capture of a graph does.
Block* malloc_to(TieredGpu& gpu, PoolId pool, Bytes size, StreamId stream = 5) {
  gpu.allocator.begin_allocate_to_pool(pool, Allocator::only_on(stream));
  Block* const block = gpu.malloc(size, stream);
  gpu.allocator.end_allocate_to_pool(pool);
  return block;
}

}  // namespace

TEST(pools_that_come_and_go_leave_nothing_where_nobody_empties_the_cache) {
  TieredGpu gpu(256_MiB, 0);
  Block* const other = gpu.malloc(3_MiB);
  Bytes most_addresses = 0;
  std::size_t most_mappings = 0;
  for (std::uint64_t i = 1; i <= 500; ++i) {
    const PoolId pool{0, i};
    Block* const small = malloc_to(gpu, pool, 4_KiB);
    Block* const large = malloc_to(gpu, pool, (1 + i % 40) * kMiB);
    gpu.driver.launch(5, 1e5);
    gpu.free({small, large});
    gpu.allocator.release_pool(pool);
    gpu.allocator.release_pool(pool);
    gpu.host.advance(1e6);
    if (i < 50) {
      most_addresses = std::max(most_addresses, gpu.driver.reserved_addresses());
      most_mappings = std::max(most_mappings, gpu.driver.mappings());
    }
  }
  CHECK(gpu.driver.reserved_addresses() <= most_addresses);
  CHECK(gpu.driver.mappings() <= 2 * most_mappings);
  CHECK(gpu.driver.events() <= 4);
  gpu.allocator.check_invariants();
  gpu.free({other});
  gpu.check_nothing_is_left();
}

TEST(pools_that_are_held_keep_their_addresses_when_others_come_and_go) {
  TieredGpu gpu(256_MiB, 0);
  Block* const held = malloc_to(gpu, kGraph, 8_MiB);
  const Address address = held->address;
  gpu.fill(held, 1);
  gpu.free({held});
  for (std::uint64_t i = 100; i < 150; ++i) {
    Block* const block = malloc_to(gpu, {0, i}, 20_MiB);
    gpu.free({block});
    gpu.allocator.release_pool({0, i});
    gpu.host.advance(1e6);
  }
  CHECK_EQUAL(malloc_to(gpu, kGraph, 8_MiB)->address, address);
  CHECK_EQUAL(gpu.driver.tag_at(address), std::uint64_t{1});
}

TEST(backups_of_all_sizes_lock_no_more_than_the_largest_and_a_batch) {
  TieredGpu gpu(2_GiB, 4_GiB);
  Random random(1);
  const auto locked = [&] {
    return static_cast<Bytes>(gpu.pool.statistics().reserved_bytes.current);
  };
  Bytes largest = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<Block*> blocks;
    Bytes left = random.between(1_MiB, 900_MiB);
    while (left > 0) {
      const Bytes size = std::min(left, random.between(1, 60_MiB));
      blocks.push_back(gpu.malloc_in(kRegion, size));
      gpu.fill(blocks.back(), blocks.size());
      left -= size;
    }
    largest = std::max(largest, gpu.allocator.pause(kRegion, {&gpu.pool}));
    CHECK(locked() <= largest + 128_MiB);
    gpu.allocator.resume(kRegion);
    for (std::size_t k = 0; k < blocks.size(); ++k) CHECK(gpu.holds(blocks[k], k + 1));
    for (Block* const block : blocks) gpu.free({block});
    gpu.allocator.empty_cache();
  }
  CHECK_EQUAL(static_cast<Bytes>(gpu.pool.statistics().active_bytes.current), Bytes{0});
}

TEST(page_locked_memory_of_graphs_that_are_gone_is_used_again) {
  TieredGpu gpu(64_MiB, 1_GiB);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    gpu.pool.begin_allocate_to_pool({0, i});
    const Address address = gpu.pool.allocate(20_MiB, {0, i});
    gpu.pool.end_allocate_to_pool();
    gpu.pool.free(address);
    gpu.pool.release_pool({0, i});
  }
  CHECK(gpu.driver.shared_used() <= 40_MiB);
  gpu.pool.empty_cache();
  CHECK_EQUAL(gpu.driver.shared_used(), Bytes{0});
}

TEST(a_region_that_a_graph_uses_gives_no_memory_away) {
  TieredGpu gpu(64_MiB, 256_MiB);
  const PoolId pool = ElasticPool::id_of(kRegion);
  Block* const temporary = malloc_to(gpu, pool, 40_MiB);
  const Address address = temporary->address;
  gpu.free({temporary});
  CHECK_THROWS(gpu.malloc(40_MiB), OutOfMemory);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{40_MiB});
  gpu.driver.write_tag(address, 40_MiB, 1);  // the graph writes to the same address
  gpu.allocator.release_pool(pool);          // the graph is gone
  gpu.free({gpu.malloc(40_MiB)});
  gpu.check_nothing_is_left();
}

TEST(a_region_that_a_graph_uses_comes_back_at_all_of_its_addresses) {
  TieredGpu gpu(128_MiB, 256_MiB);
  const PoolId pool = ElasticPool::id_of(kRegion);
  Block* const temporary = malloc_to(gpu, pool, 40_MiB);
  Block* const result = malloc_to(gpu, pool, 10_MiB);
  const Address address = temporary->address;
  gpu.fill(result, 2);
  gpu.free({temporary});
  for (int i = 0; i < 3; ++i) {
    CHECK_EQUAL(gpu.allocator.pause(kRegion, {&gpu.pool}), Bytes{50_MiB});
    CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
    gpu.allocator.empty_cache();
    gpu.free({gpu.malloc(120_MiB)});
    gpu.allocator.check_invariants();
    CHECK_EQUAL(gpu.allocator.resume(kRegion), Bytes{50_MiB});
    gpu.allocator.check_invariants();
    gpu.driver.write_tag(address, 40_MiB, 1);
    CHECK(gpu.holds(result, 2));
  }
  gpu.allocator.pause(kRegion, {&gpu.pool});
  gpu.allocator.release_pool(pool);  // both graphs end while the region is paused
  gpu.allocator.release_pool(pool);
  CHECK_EQUAL(gpu.allocator.resume(kRegion), Bytes{10_MiB});
  CHECK(gpu.holds(result, 2));
  gpu.free({result});
  gpu.check_nothing_is_left();
}

}  // namespace plimsoll
