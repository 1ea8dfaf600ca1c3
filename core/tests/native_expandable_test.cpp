// Tests expandable segments: address space that grows and shrinks in place, page by page.

#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr std::string_view kExpandable = "expandable_segments:True";
constexpr PoolId kPool{0, 1};

std::vector<Block*> allocate(Gpu& gpu, int count, Bytes size) {
  std::vector<Block*> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(gpu.malloc(size));
  gpu.events();
  return blocks;
}

}  // namespace

TEST(native_grows_an_expandable_segment_in_place) {
  Gpu gpu(1_GiB, kExpandable);
  const Block* const first = gpu.malloc(30_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 40M, alloc 30M");
  const Block* const second = gpu.malloc(30_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 20M, alloc 30M");
  CHECK_EQUAL(second->address, first->address + 30_MiB);
  CHECK_EQUAL(gpu.layout(), "[30M used, 30M used]");
  CHECK_EQUAL(gpu.driver.calls(Call::reserve), 1U);
  CHECK_EQUAL(gpu.driver.calls(Call::create), 3U);
}

TEST(native_maps_pages_of_2_mib_for_small_requests_and_20_mib_for_large_ones) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.malloc(512);
  CHECK_EQUAL(gpu.events(), "segment_map 2M, alloc 512");
  gpu.malloc(2_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 20M, alloc 2M");
  CHECK_EQUAL(gpu.driver.calls(Call::reserve), 2U);
  CHECK_EQUAL(gpu.driver.dedicated_used(), 22_MiB);
}

TEST(native_splits_expandable_blocks_down_to_512_bytes) {
  Gpu gpu(1_GiB, "expandable_segments:True,max_split_size_mb:32");
  gpu.free({gpu.malloc(40_MiB)});
  gpu.malloc(40_MiB - 512);
  CHECK_EQUAL(gpu.layout(), "[41942528 used, 512 free]");
}

TEST(native_keeps_an_expandable_segment_for_each_stream) {
  Gpu gpu(1_GiB, kExpandable);
  const Block* const first = gpu.malloc(20_MiB, 1);
  const Block* const second = gpu.malloc(20_MiB, 2);
  CHECK_EQUAL(gpu.driver.calls(Call::reserve), 2U);
  CHECK(first->expandable != second->expandable);
  CHECK_EQUAL(first->expandable->size(), 1160_MiB);  // 9/8 of the device, in whole pages
}

TEST(native_counts_no_expandable_segments_as_segments) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.free({gpu.malloc(30_MiB)});
  gpu.malloc(10_MiB);
  const Statistics& statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.segment.all.current, 0);
  CHECK_EQUAL(statistics.inactive_split.all.current, 0);
  CHECK_EQUAL(statistics.reserved_bytes.all.current, static_cast<std::int64_t>(40_MiB));
}

TEST(native_prefers_a_block_that_need_not_grow) {
  Gpu gpu(1_GiB, kExpandable);
  const std::vector<Block*> blocks = allocate(gpu, 4, 30_MiB);  // 120 MiB mapped, all used
  gpu.free({blocks[0]});
  gpu.malloc(40_MiB);  // too large for the gap
  CHECK_EQUAL(gpu.events(), "free_requested 30M, free_completed 30M, segment_map 40M, alloc 40M");
  gpu.malloc(10_MiB);
  CHECK_EQUAL(gpu.layout(), "[10M used, 20M free, 30M used, 30M used, 30M used, 40M used]");
}

TEST(native_gives_a_grown_block_the_free_memory_before_it) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.malloc(5_MiB);
  CHECK_EQUAL(gpu.layout(), "[5M used, 15M free]");
  gpu.events();
  gpu.malloc(25_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 20M, alloc 25M");
  CHECK_EQUAL(gpu.layout(), "[5M used, 25M used, 10M free]");
}

// --- giving memory back ------------------------------------------------------------------------

TEST(native_unmaps_the_free_pages_of_an_expandable_segment) {
  Gpu gpu(1_GiB, kExpandable);
  const std::vector<Block*> blocks = allocate(gpu, 3, 20_MiB);
  const Address middle = blocks[1]->address;
  gpu.free({blocks[1]});
  gpu.events();
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.events(), "segment_unmap 20M");
  CHECK_EQUAL(gpu.layout(), "[20M used] [20M used]");
  CHECK_EQUAL(gpu.driver.dedicated_used(), 40_MiB);
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.malloc(20_MiB)->address, middle);  // in the gap, not at the segment's end
  CHECK_EQUAL(gpu.events(), "segment_map 20M, alloc 20M");
  CHECK_EQUAL(gpu.layout(), "[20M used, 20M used, 20M used]");
}

TEST(native_unmaps_only_pages_that_are_wholly_free) {
  Gpu gpu(1_GiB, kExpandable);
  Block* const first = gpu.malloc(30_MiB);
  Block* const second = gpu.malloc(60_MiB);
  gpu.malloc(5_MiB);
  gpu.free({second});
  gpu.events();
  gpu.allocator.empty_cache();
  // The segment is free from its offset 30 MiB to 90 MiB. The whole pages there, of 20 MiB each,
  // are those from 40 MiB to 80 MiB.
  CHECK_EQUAL(gpu.events(), "segment_unmap 40M");
  CHECK_EQUAL(gpu.layout(), "[30M used, 10M free] [10M free, 5M used, 5M free]");
  gpu.allocator.check_invariants();
  gpu.free({first});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.layout(), "[10M free, 5M used, 5M free]");
  CHECK_EQUAL(gpu.driver.calls(Call::unreserve), 0U);
}

TEST(native_releases_an_expandable_segment_that_is_wholly_free) {
  Gpu gpu(1_GiB, kExpandable);
  const std::vector<Block*> blocks = allocate(gpu, 3, 20_MiB);
  for (Block* const block : blocks) gpu.free({block});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.calls(Call::unreserve), 1U);
  CHECK_EQUAL(gpu.driver.dedicated_used(), 0U);
  CHECK_EQUAL(gpu.reserved(), 0U);
  gpu.malloc(20_MiB);
  CHECK_EQUAL(gpu.driver.calls(Call::reserve), 2U);
}

TEST(native_waits_for_the_stream_before_it_unmaps) {
  Gpu gpu(1_GiB, kExpandable);
  Block* const block = gpu.malloc(20_MiB, 3);
  gpu.driver.launch(3, 5e6);
  gpu.free({block});
  gpu.allocator.empty_cache();
  CHECK(gpu.host.now_ns() >= 5e6);
}

TEST(native_unmaps_pages_of_other_streams_when_memory_runs_short) {
  Gpu gpu(100_MiB, kExpandable);
  gpu.free({gpu.malloc(60_MiB, 1)});
  gpu.events();
  gpu.malloc(80_MiB, 2);
  CHECK_EQUAL(gpu.events(), "segment_unmap 60M, segment_map 80M, alloc 80M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
}

TEST(native_forgets_a_private_pool_whose_expandable_segment_is_gone) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.free({gpu.malloc(30_MiB)});
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.allocator.release_pool(kPool);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.dedicated_used(), 0U);
  CHECK_THROWS((gpu.allocator.release_pool(kPool), 0), std::invalid_argument);
}

TEST(native_keeps_a_private_pool_while_any_page_of_it_is_mapped) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.free({gpu.malloc(60_MiB)});
  const std::vector<Block*> blocks =
      allocate(gpu, 4, 20_MiB);  // takes three cached pages and a new one
  gpu.allocator.end_allocate_to_pool(kPool);
  gpu.allocator.release_pool(kPool);
  gpu.free({blocks[0], blocks[2]});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.layout(), "[20M used] [20M used]");
  gpu.free({blocks[1], blocks[3]});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.layout(), "");
  CHECK_EQUAL(gpu.driver.dedicated_used(), 0U);
}

TEST(native_loses_no_page_of_a_segment_that_is_gone) {
  for (const std::uint64_t refusals : {1U, 2U, 3U, 5U}) {
    Gpu gpu(1_GiB, kExpandable);
    Block* const small = gpu.malloc(512);
    Block* const large = gpu.malloc(60_MiB);
    gpu.free({small, large});
    gpu.driver.inject({Call::release, 0, refusals});
    gpu.allocator.empty_cache();
    CHECK_EQUAL(gpu.reserved(), 0U);
    gpu.driver.clear_faults();
    gpu.allocator.empty_cache();
    CHECK_EQUAL(gpu.driver.dedicated_used(), 0U);
    CHECK_EQUAL(gpu.driver.handles(), std::size_t{0});
    gpu.malloc(1000_MiB);
  }
}

TEST(native_gives_all_pages_back_when_it_ends) {
  SimulatedHost host(1_GiB);
  SimulatedDriver driver(host, 1_GiB);
  {
    NativeAllocator allocator(driver, AllocatorConfig::parse(kExpandable));
    allocator.free(allocator.malloc(512, 0));
    driver.inject({Call::release, 0, 2});
    allocator.empty_cache();
  }
  CHECK_EQUAL(driver.dedicated_used(), 0U);
}

// --- refusals ----------------------------------------------------------------------------------

TEST(native_takes_back_the_pages_that_were_made_before_a_page_failed) {
  for (const Call call : {Call::create, Call::map}) {
    for (const std::uint64_t page : {0U, 1U, 2U}) {
      Gpu gpu(1_GiB, kExpandable);
      gpu.malloc(20_MiB);
      gpu.driver.inject({call, page});
      CHECK_THROWS(gpu.malloc(60_MiB), OutOfMemory);
      gpu.allocator.check_invariants();
      CHECK_EQUAL(gpu.layout(), "[20M used]");
      CHECK_EQUAL(gpu.driver.dedicated_used(), 20_MiB);
      gpu.driver.clear_faults();
      gpu.events();
      gpu.malloc(60_MiB);
      CHECK_EQUAL(gpu.events(), "segment_map 60M, alloc 60M");
      CHECK_EQUAL(gpu.layout(), "[20M used, 60M used]");
    }
  }
}

TEST(native_tries_again_after_a_page_failed_once) {
  for (const Call call : {Call::create, Call::map, Call::set_access}) {
    Gpu gpu(1_GiB, kExpandable);
    gpu.driver.inject({call, 0, 1});
    gpu.malloc(60_MiB);
    CHECK_EQUAL(gpu.events(), "segment_map 60M, alloc 60M");
    CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
    CHECK_EQUAL(gpu.driver.dedicated_used(), 60_MiB);
  }
}

TEST(native_stays_consistent_when_the_second_of_two_gaps_cannot_be_mapped) {
  Gpu gpu(1_GiB, kExpandable);
  const std::vector<Block*> blocks = allocate(gpu, 5, 20_MiB);
  gpu.free({blocks[1], blocks[3]});
  gpu.allocator.empty_cache();
  gpu.free({blocks[2]});
  // The segment now has five parts of 20 MiB: used, unmapped, free, unmapped, used.
  CHECK_EQUAL(gpu.layout(), "[20M used] [20M free] [20M used]");
  gpu.events();
  gpu.driver.inject({Call::create, 1, 1});
  gpu.malloc(60_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 20M, segment_unmap 40M, segment_map 60M, alloc 60M");
  CHECK_EQUAL(gpu.layout(), "[20M used, 60M used, 20M used]");
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.driver.dedicated_used(), gpu.reserved());
}

TEST(native_names_a_failed_reservation) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.driver.inject({Call::reserve, 0, 1});
  CHECK_EQUAL(message_of<DriverError>([&] { return gpu.malloc(512); }),
              "the driver failed to reserve address space: out of memory");
  gpu.allocator.check_invariants();
  CHECK(gpu.malloc(512) != nullptr);
}

TEST(native_holds_the_request_not_the_pages_against_the_limit) {
  Gpu gpu(1_GiB, kExpandable);
  gpu.allocator.set_limit(30_MiB);
  gpu.malloc(30_MiB);
  CHECK_EQUAL(gpu.reserved(), 40_MiB);
  gpu.malloc(10_MiB);
  CHECK_THROWS(gpu.malloc(512), OutOfMemory);
}

// --- a limit of the reserved address space ------------------------------------------------------

TEST(native_makes_further_expandable_segments_where_their_reserve_is_full) {
  // A segment reserves 1/16 of the device: 64 MiB, rounded up to 4 pages of 20 MiB.
  Gpu gpu(1_GiB, "expandable_segments:True,expandable_segments_reserve:0.0625");
  gpu.malloc(50_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 60M, alloc 50M");
  gpu.malloc(40_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 40M, alloc 40M");
  CHECK_EQUAL(gpu.layout(), "[50M used, 10M free] [40M used]");
  gpu.malloc(30_MiB);  // fills the first segment, which can grow to 80 MiB
  CHECK_EQUAL(gpu.layout(), "[50M used, 30M used] [40M used]");
  gpu.allocator.check_invariants();
}

TEST(native_is_out_of_memory_where_a_request_is_larger_than_an_expandable_segment) {
  Gpu gpu(1_GiB, "expandable_segments:True,expandable_segments_reserve:0.0625");
  gpu.malloc(2_MiB);
  gpu.free({gpu.malloc(30_MiB, 1)});
  gpu.events();
  const auto message = message_of<OutOfMemory>([&] { return gpu.malloc(80_MiB + 1); });
  CHECK(message.starts_with("CUDA out of memory. Tried to allocate 82.00 MiB."));
  CHECK(contains(message,
                 "unallocated. This allocation exceeds the expandable-segment reserve "
                 "of 64.00 MiB for this stream, and a single allocation"));
  CHECK(message.ends_with("so that a segment is at least 82.00 MiB."));
  CHECK_EQUAL(gpu.events(), "segment_unmap 40M, oom 83886592");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
  CHECK_EQUAL(gpu.driver.dedicated_used(), 20_MiB);
  CHECK_EQUAL(gpu.malloc(80_MiB)->size, 80_MiB);
  gpu.allocator.check_invariants();
}

TEST(native_advises_by_version_what_might_help) {
  const auto advice = [](const char* version, const char* config) {
    Gpu gpu(100_MiB, config, TorchVersion::parse(version));
    return message_of<OutOfMemory>([&] { return gpu.malloc(200_MiB); });
  };
  CHECK(contains(advice("2.13", kExpandable.data()), "try setting PYTORCH_CUDA_ALLOC_CONF="));
  CHECK(advice("2.14", kExpandable.data()).ends_with("is reserved by PyTorch but unallocated."));
  CHECK(contains(advice("2.15", ""), "try setting PYTORCH_CUDA_ALLOC_CONF="));
  CHECK(contains(advice("2.15", kExpandable.data()),
                 "unallocated. expandable_segments is enabled. If instead the process is"));
}

TEST(native_keeps_a_reserve_that_later_settings_do_not_name) {
  Gpu gpu(1_GiB, "expandable_segments:True,expandable_segments_reserve:0.0625");
  gpu.allocator.configure(gpu.allocator.config().with("expandable_segments:True"));
  CHECK(!message_of<OutOfMemory>([&] { return gpu.malloc(100_MiB); }).empty());
  gpu.allocator.configure(
      gpu.allocator.config().with("expandable_segments:True,expandable_segments_reserve:2"));
  CHECK_EQUAL(gpu.malloc(100_MiB)->size, 100_MiB);
}

}  // namespace plimsoll
