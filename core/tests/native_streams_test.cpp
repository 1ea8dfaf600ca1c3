// Tests frees that wait for other streams, outside and inside a graph capture.

#include <optional>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr PoolId kPool{0, 1};
constexpr double kMillisecond = 1e6;

// Allocates a block on stream 0, starts work on stream 2 that uses the block for one millisecond,
// and frees the block before that work ends.
Block* freed_while_in_use(Gpu& gpu, Bytes size = 30_MiB) {
  Block* const block = gpu.malloc(size);
  gpu.driver.launch(2, kMillisecond);
  gpu.allocator.record_stream(block, 2);
  gpu.free({block});
  gpu.events();
  return block;
}

}  // namespace

TEST(native_reuses_a_block_once_the_other_stream_is_done_with_it) {
  Gpu gpu(1_GiB);
  const Address address = freed_while_in_use(gpu)->address;
  CHECK_EQUAL(gpu.layout(), "[30M pending]");
  CHECK(gpu.malloc(30_MiB)->address != address);
  gpu.host.advance(kMillisecond);
  gpu.events();
  CHECK_EQUAL(gpu.malloc(30_MiB)->address, address);
  CHECK_EQUAL(gpu.events(), "free_completed 30M, alloc 30M");
}

TEST(native_counts_a_waiting_block_as_active_but_not_as_allocated) {
  Gpu gpu(1_GiB);
  freed_while_in_use(gpu);
  const Statistics& statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.allocated_bytes.all.current, 0);
  CHECK_EQUAL(statistics.allocation.all.current, 0);
  CHECK_EQUAL(statistics.active_bytes.all.current, static_cast<std::int64_t>(30_MiB));
  CHECK_EQUAL(statistics.active.all.current, 1);
  CHECK_EQUAL(statistics.requested_bytes.all.current, static_cast<std::int64_t>(30_MiB));
  gpu.host.advance(kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(statistics.active_bytes.all.current, 0);
  CHECK_EQUAL(statistics.requested_bytes.all.current, 0);
  CHECK_EQUAL(gpu.layout(), "[30M free]");
}

TEST(native_completes_a_free_at_once_when_no_other_stream_used_the_block) {
  Gpu gpu(1_GiB);
  Block* const block = gpu.malloc(30_MiB, 2);
  gpu.driver.launch(2, kMillisecond);
  gpu.allocator.record_stream(block, 2);  // the block's own stream
  gpu.events();
  gpu.free({block});
  CHECK_EQUAL(gpu.events(), "free_requested 30M, free_completed 30M");
  CHECK_EQUAL(gpu.driver.calls(Call::record), 0U);
}

TEST(native_waits_for_every_stream_that_used_the_block) {
  Gpu gpu(1_GiB);
  Block* const block = gpu.malloc(30_MiB);
  for (const StreamId stream : {2U, 3U, 2U}) {
    gpu.driver.launch(stream, static_cast<double>(stream) * kMillisecond);
    gpu.allocator.record_stream(block, stream);
  }
  gpu.free({block});
  CHECK_EQUAL(gpu.driver.calls(Call::record), 2U);
  // Stream 3 is done; stream 2 needs another half millisecond.
  gpu.host.advance(3.5 * kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[30M pending]");
  gpu.host.advance(kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[30M free]");
}

TEST(native_does_not_wait_for_work_queued_after_the_free) {
  Gpu gpu(1_GiB);
  freed_while_in_use(gpu);
  gpu.driver.launch(2, 100 * kMillisecond);
  gpu.host.advance(kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[30M free]");
}

TEST(native_does_not_merge_with_a_waiting_block) {
  Gpu gpu(1_GiB);
  Block* const before = gpu.malloc(4_MiB);
  freed_while_in_use(gpu, 4_MiB);
  gpu.free({before});
  CHECK_EQUAL(gpu.layout(), "[4M free, 4M pending, 12M free]");
  gpu.allocator.check_invariants();
  gpu.host.advance(kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[20M free]");
}

TEST(native_waits_for_other_streams_to_empty_its_cache) {
  Gpu gpu(1_GiB);
  freed_while_in_use(gpu);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.events(), "free_completed 30M, segment_free 30M");
  CHECK(gpu.host.now_ns() >= kMillisecond);
  CHECK_EQUAL(gpu.allocator.statistics().num_sync_all_streams, 1);
}

TEST(native_waits_for_other_streams_before_it_fails) {
  Gpu gpu(40_MiB);
  freed_while_in_use(gpu);
  gpu.malloc(40_MiB);
  CHECK_EQUAL(gpu.events(), "free_completed 30M, segment_free 30M, segment_alloc 40M, alloc 40M");
}

TEST(native_forgets_the_streams_of_an_earlier_owner) {
  Gpu gpu(1_GiB);
  freed_while_in_use(gpu);
  gpu.host.advance(kMillisecond);
  Block* const block = gpu.malloc(30_MiB);
  gpu.driver.launch(2, kMillisecond);
  gpu.free({block});
  CHECK_EQUAL(gpu.layout(), "[30M free]");
}

// --- captures ----------------------------------------------------------------------------------

namespace {

void begin_capture(Gpu& gpu) {
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.allocator.begin_graph_capture();
}

void end_capture(Gpu& gpu) {
  gpu.allocator.end_graph_capture();
  gpu.allocator.end_allocate_to_pool(kPool);
}

}  // namespace

TEST(native_queries_no_event_inside_a_capture) {
  Gpu gpu(1_GiB);
  freed_while_in_use(gpu);
  gpu.host.advance(kMillisecond);
  begin_capture(gpu);
  gpu.allocator.poll();
  gpu.malloc(512);
  CHECK_EQUAL(gpu.driver.calls(Call::query), 0U);
  CHECK_EQUAL(gpu.layout(), "[30M pending] [512 used, 2096640 free]");
  end_capture(gpu);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[30M free] [512 used, 2096640 free]");
}

TEST(native_takes_any_use_of_a_pool_for_a_capture_before_2_13) {
  for (const auto& [version, is_capture] : {std::pair{"2.12", true}, {"2.13", false}}) {
    Gpu gpu(100_MiB, "", TorchVersion::parse(version));
    freed_while_in_use(gpu);
    gpu.host.advance(kMillisecond);
    gpu.allocator.begin_allocate_to_pool(kPool, {});
    gpu.malloc(512);
    CHECK_EQUAL(gpu.driver.calls(Call::query), is_capture ? 0U : 1U);
    const auto refusal = message_of<OutOfMemory>([&] { return gpu.malloc(80_MiB); });
    // Outside a capture, cached memory of other pools goes back to the driver and the request
    // succeeds. Inside a capture that memory stays, and the request fails.
    CHECK_EQUAL(refusal.empty(), !is_capture);
    gpu.allocator.end_allocate_to_pool(kPool);
  }
}

TEST(native_ends_no_capture_that_did_not_begin) {
  Gpu gpu(1_GiB);
  CHECK_THROWS((gpu.allocator.end_graph_capture(), 0), std::invalid_argument);
}

TEST(native_defers_a_free_inside_a_capture_until_its_end) {
  Gpu gpu(1_GiB);
  Block* const block = gpu.malloc(30_MiB);
  gpu.allocator.record_stream(block, 2);
  begin_capture(gpu);
  gpu.free({block});
  CHECK_EQUAL(gpu.driver.calls(Call::record), 0U);
  CHECK_EQUAL(gpu.layout(), "[30M pending]");
  gpu.allocator.check_invariants();
  gpu.driver.launch(2, kMillisecond);
  end_capture(gpu);
  gpu.allocator.poll();  // records the event only now, after the work that was launched above
  CHECK_EQUAL(gpu.driver.calls(Call::record), 1U);
  CHECK_EQUAL(gpu.layout(), "[30M pending]");
  gpu.host.advance(kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[30M free]");
}

TEST(native_needs_no_event_for_uses_inside_a_finished_capture) {
  Gpu gpu(1_GiB);
  begin_capture(gpu);
  Block* const block = gpu.malloc(30_MiB);
  gpu.allocator.record_stream(block, 2);
  gpu.free({block});
  CHECK_EQUAL(gpu.layout(), "[30M pending]");
  end_capture(gpu);
  gpu.driver.launch(2, kMillisecond);
  gpu.allocator.poll();
  CHECK_EQUAL(gpu.layout(), "[30M free]");
  CHECK_EQUAL(gpu.driver.calls(Call::record), 0U);
}

TEST(native_completes_frees_without_other_streams_inside_a_capture) {
  Gpu gpu(1_GiB);
  begin_capture(gpu);
  const Block* const first = gpu.malloc(30_MiB);
  const Address address = first->address;
  gpu.free({gpu.malloc(5_MiB)});
  CHECK_EQUAL(gpu.malloc(5_MiB)->size, 5_MiB);
  CHECK_EQUAL(gpu.allocator.statistics().segment.all.current, 2);
  CHECK_EQUAL(first->address, address);
}

}  // namespace plimsoll
