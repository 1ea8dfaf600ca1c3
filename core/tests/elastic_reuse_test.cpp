// What people expect of a cache: which block serves again, and what is counted as the driver's.

#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "elastic_gpu.h"
#include "support.h"

namespace plimsoll {

TEST(elastic_reuses_a_freed_block_of_the_size_first_once_other_streams_are_done) {
  ElasticGpu gpu(1_GiB);
  Block* const first = gpu.malloc(16, 1);
  const Address at = first->address;
  gpu.allocator.record_stream(first, 2);
  gpu.driver.launch(2, 10e6);
  gpu.free({first});
  const Block* const second = gpu.malloc(16, 1);
  CHECK(second->address != at);
  gpu.host.advance(20e6);
  CHECK_EQUAL(gpu.malloc(16, 1)->address, at);
  gpu.allocator.check_invariants();
}

TEST(elastic_asks_for_other_streams_only_where_a_freed_block_of_the_size_waits) {
  ElasticGpu gpu(1_GiB);
  gpu.free({gpu.malloc(64_MiB), gpu.malloc(1_KiB), gpu.malloc(8_MiB, 1)});
  Block* const block = gpu.malloc(8_MiB);
  gpu.allocator.record_stream(block, 2);
  gpu.driver.launch(2, 10e6);
  gpu.free({block});
  const std::uint64_t before = gpu.event_calls();
  gpu.free({gpu.malloc(4_MiB), gpu.malloc(1_KiB), gpu.malloc(8_MiB, 1)});
  CHECK_EQUAL(gpu.event_calls(), before);
  gpu.malloc(8_MiB);
  CHECK(gpu.event_calls() > before);
  gpu.host.advance(20e6);
  gpu.malloc(8_MiB);
  const std::uint64_t done = gpu.event_calls();
  gpu.malloc(8_MiB);  // nothing waits any more
  CHECK_EQUAL(gpu.event_calls(), done);
  gpu.allocator.check_invariants();
}

TEST(elastic_reuses_the_block_that_was_freed_just_now) {
  ElasticGpu gpu(4_GiB);
  std::mt19937_64 random(5);
  std::vector<Block*> live;
  for (std::uint64_t step = 0; step < 4000; ++step) {
    const StreamId stream = step % 2;
    const Bytes size = step % 3 == 0 ? 512 + random() % 1_MiB : 1_MiB + random() % 12_MiB;
    Block* const block = gpu.malloc(size, stream);
    const Address at = block->address;
    gpu.free({block});
    live.push_back(gpu.malloc(size, stream));
    CHECK_EQUAL(live.back()->address, at);
    if (live.size() < 100) continue;
    std::swap(live[random() % live.size()], live.back());
    gpu.free({live.back()});
    live.pop_back();
  }
  gpu.allocator.check_invariants();
}

TEST(elastic_counts_a_segment_for_each_piece_of_the_driver) {
  ElasticGpu gpu(256_MiB);
  const auto segments = [&] { return gpu.allocator.statistics().segment; };
  gpu.free({gpu.malloc(40_MiB)});
  const std::int64_t before = segments().all.current;
  CHECK_EQUAL(before, gpu.allocator.statistics().num_device_alloc);
  gpu.allocator.begin_allocate_to_pool(PoolId{0, 1}, {});
  Block* const small = gpu.malloc(512);
  CHECK_EQUAL(segments().small_pool.current, 1);
  Block* const large = gpu.malloc(40_MiB);
  gpu.allocator.end_allocate_to_pool(PoolId{0, 1});
  CHECK_EQUAL(static_cast<std::uint64_t>(segments().all.current), gpu.driver.handles());
  gpu.free({small, large});
  gpu.allocator.release_pool(PoolId{0, 1});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(segments().all.current, 0);
  CHECK(segments().all.peak >= before);
  gpu.allocator.check_invariants();
}

}  // namespace plimsoll
