// Tests PyTorch's rules for requests that get a free block or a new segment.

#include "plimsoll/allocator/native/native.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {

// --- sizes and pools ---------------------------------------------------------------------------

TEST(native_rounds_requests_up_to_512_bytes) {
  Gpu gpu(1_GiB);
  const Block* const block = gpu.malloc(513);
  CHECK_EQUAL(block->size, 1_KiB);
  CHECK_EQUAL(block->requested, 513U);
  CHECK_EQUAL(gpu.malloc(1)->size, 512U);
  const Statistics& statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.allocated_bytes.all.current, 1536);
  CHECK_EQUAL(statistics.requested_bytes.all.current, 514);
}

TEST(native_rounds_requests_as_configured) {
  Gpu gpu(1_GiB, "roundup_power2_divisions:4");
  CHECK_EQUAL(gpu.malloc(5_MiB + 1)->size, 6_MiB);
  CHECK_EQUAL(gpu.malloc(16_MiB + 1)->size, 20_MiB);
  CHECK_EQUAL(gpu.malloc(10_KiB + 1)->size, 12_KiB);
}

TEST(native_serves_requests_up_to_1_mib_from_segments_of_2_mib) {
  Gpu gpu(1_GiB);
  gpu.malloc(1_MiB);
  CHECK_EQUAL(gpu.events(), "segment_alloc 2M, alloc 1M");
  gpu.malloc(512_KiB);
  gpu.malloc(512_KiB);
  CHECK_EQUAL(gpu.events(), "alloc 512K, alloc 512K");
  gpu.malloc(1);
  CHECK_EQUAL(gpu.events(), "segment_alloc 2M, alloc 1");
  CHECK_EQUAL(gpu.allocator.statistics().segment.small_pool.current, 2);
  CHECK_EQUAL(gpu.allocator.statistics().segment.large_pool.current, 0);
}

TEST(native_serves_requests_below_10_mib_from_segments_of_20_mib) {
  Gpu gpu(1_GiB);
  gpu.malloc(1_MiB + 1);
  CHECK_EQUAL(gpu.events(), "segment_alloc 20M, alloc 1048577");
  gpu.malloc(10_MiB - 512);
  CHECK_EQUAL(gpu.events(), "alloc 10485248");
  CHECK_EQUAL(gpu.layout(), "[1049088 used, 10485248 used, 9M free]");
}

TEST(native_numbers_segments_in_the_order_in_which_they_were_made) {
  Gpu gpu(1_GiB);
  gpu.driver.scatter_allocations(1);
  std::vector<Address> made;
  for (int i = 0; i < 8; ++i) {
    made.push_back(gpu.malloc(20_MiB)->address);
    made.push_back(gpu.malloc(7_MiB)->address);  // the first part of a segment of 20 MiB
    gpu.malloc(13_MiB);                          // its second part
  }
  CHECK(!std::ranges::is_sorted(made));
  std::vector<SegmentInfo> segments = gpu.allocator.segments();
  std::ranges::sort(segments, {}, &SegmentInfo::number);
  std::vector<Address> numbered;
  for (const SegmentInfo& segment : segments) numbered.push_back(segment.address);
  CHECK(numbered == made);
}

TEST(native_gives_requests_from_10_mib_on_a_segment_of_their_own) {
  Gpu gpu(1_GiB);
  gpu.malloc(10_MiB);
  CHECK_EQUAL(gpu.events(), "segment_alloc 10M, alloc 10M");
  gpu.malloc(100_MiB + 1);
  CHECK_EQUAL(gpu.events(), "segment_alloc 102M, alloc 104857601");
}

TEST(native_sizes_large_segments_as_configured) {
  Gpu gpu(1_GiB, "large_segment_size_mb:64");
  gpu.malloc(5_MiB);
  CHECK_EQUAL(gpu.layout(), "[5M used, 59M free]");
}

TEST(native_keeps_small_and_large_requests_apart) {
  Gpu gpu(1_GiB);
  gpu.malloc(5_MiB);
  gpu.malloc(512);
  CHECK_EQUAL(gpu.events(), "segment_alloc 20M, alloc 5M, segment_alloc 2M, alloc 512");
  gpu.free({gpu.malloc(1_MiB), gpu.malloc(1_MiB)});
  gpu.events();
  gpu.malloc(1_MiB + 512);
  CHECK_EQUAL(gpu.events(), "alloc 1049088");
}

TEST(native_keeps_streams_apart) {
  Gpu gpu(1_GiB);
  gpu.free({gpu.malloc(30_MiB, 1)});
  gpu.events();
  gpu.malloc(30_MiB, 2);
  CHECK_EQUAL(gpu.events(), "segment_alloc 30M, alloc 30M");
  gpu.malloc(30_MiB, 1);
  CHECK_EQUAL(gpu.events(), "alloc 30M");
}

// --- splitting and merging ---------------------------------------------------------------------

TEST(native_splits_a_large_block_only_if_more_than_1_mib_is_left) {
  Gpu gpu(1_GiB);
  gpu.free({gpu.malloc(12_MiB)});
  Block* const whole = gpu.malloc(11_MiB);
  CHECK_EQUAL(gpu.layout(), "[12M used]");
  gpu.free({whole});
  gpu.malloc(11_MiB - 512);
  CHECK_EQUAL(gpu.layout(), "[11533824 used, 1049088 free]");
}

TEST(native_splits_a_small_block_if_512_bytes_are_left) {
  Gpu gpu(1_GiB);
  gpu.malloc(1_MiB);
  gpu.malloc(1_MiB - 512);
  CHECK_EQUAL(gpu.layout(), "[1M used, 1048064 used, 512 free]");
}

TEST(native_merges_a_freed_block_with_its_free_neighbours) {
  Gpu gpu(1_GiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(gpu.malloc(4_MiB));
  CHECK_EQUAL(gpu.layout(), "[4M used, 4M used, 4M used, 4M used, 4M used]");
  gpu.free({blocks[1]});
  gpu.free({blocks[0]});
  CHECK_EQUAL(gpu.layout(), "[8M free, 4M used, 4M used, 4M used]");
  gpu.free({blocks[3]});
  CHECK_EQUAL(gpu.layout(), "[8M free, 4M used, 4M free, 4M used]");
  gpu.free({blocks[2]});
  CHECK_EQUAL(gpu.layout(), "[16M free, 4M used]");
  gpu.free({blocks[4]});
  CHECK_EQUAL(gpu.layout(), "[20M free]");
}

TEST(native_counts_the_free_blocks_of_split_segments) {
  Gpu gpu(1_GiB);
  const Statistics& statistics = gpu.allocator.statistics();
  const auto inactive_split = [&] {
    return std::to_string(statistics.inactive_split.all.current) + " of " +
           short_size(static_cast<Bytes>(statistics.inactive_split_bytes.all.current));
  };
  Block* const first = gpu.malloc(4_MiB);
  CHECK_EQUAL(inactive_split(), "1 of 16M");
  Block* const second = gpu.malloc(4_MiB);
  CHECK_EQUAL(inactive_split(), "1 of 12M");
  gpu.free({first});
  CHECK_EQUAL(inactive_split(), "2 of 16M");
  Block* const again = gpu.malloc(4_MiB);
  CHECK_EQUAL(inactive_split(), "1 of 12M");
  gpu.free({second});
  CHECK_EQUAL(inactive_split(), "1 of 16M");
  gpu.free({again});
  CHECK_EQUAL(inactive_split(), "0 of 0");
}

// --- best fit ----------------------------------------------------------------------------------

TEST(native_takes_the_smallest_free_block_that_fits) {
  Gpu gpu(1_GiB);
  std::vector<Block*> blocks;
  for (const Bytes size : {40_MiB, 14_MiB, 30_MiB}) blocks.push_back(gpu.malloc(size));
  const Address address = blocks[2]->address;
  for (Block* const block : blocks) gpu.free({block});
  CHECK_EQUAL(gpu.malloc(20_MiB)->address, address);
}

TEST(native_takes_the_lowest_address_among_equal_blocks) {
  Gpu gpu(1_GiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(gpu.malloc(4_MiB));
  const Address low = blocks[1]->address;
  gpu.free({blocks[3]});
  gpu.free({blocks[1]});
  CHECK_EQUAL(gpu.malloc(4_MiB)->address, low);
}

TEST(native_never_splits_blocks_of_max_split_size) {
  Gpu gpu(1_GiB, "max_split_size_mb:32");
  gpu.free({gpu.malloc(40_MiB)});
  gpu.events();
  gpu.malloc(30_MiB);  // a block of 32 MiB or more serves only requests of 32 MiB or more
  CHECK_EQUAL(gpu.events(), "segment_alloc 30M, alloc 30M");
  const Block* const large = gpu.malloc(34_MiB);
  CHECK_EQUAL(gpu.events(), "alloc 34M");
  CHECK_EQUAL(large->size, 40_MiB);
}

TEST(native_splits_blocks_below_max_split_size) {
  Gpu gpu(1_GiB, "max_split_size_mb:32");
  gpu.free({gpu.malloc(30_MiB)});
  gpu.malloc(12_MiB);
  CHECK_EQUAL(gpu.layout(), "[12M used, 18M free]");
}

TEST(native_gives_oversize_requests_only_blocks_of_similar_size) {
  for (const bool rounds_more : {false, true}) {
    Gpu gpu(1_GiB, rounds_more ? "max_split_size_mb:32,max_non_split_rounding_mb:21"
                               : "max_split_size_mb:32");
    gpu.free({gpu.malloc(60_MiB)});
    gpu.events();
    gpu.malloc(40_MiB);
    CHECK_EQUAL(gpu.events(), rounds_more ? "alloc 40M" : "segment_alloc 40M, alloc 40M");
  }
}

TEST(native_counts_oversize_blocks_and_segments) {
  Gpu gpu(1_GiB, "max_split_size_mb:32");
  const Statistics& statistics = gpu.allocator.statistics();
  Block* const block = gpu.malloc(32_MiB);
  gpu.malloc(30_MiB);
  CHECK_EQUAL(statistics.oversize_allocations.current, 1);
  CHECK_EQUAL(statistics.oversize_segments.current, 1);
  gpu.free({block});
  CHECK_EQUAL(statistics.oversize_allocations.current, 0);
  CHECK_EQUAL(statistics.oversize_segments.current, 1);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(statistics.oversize_segments.current, 0);
  CHECK_EQUAL(statistics.max_split_size, static_cast<std::int64_t>(32_MiB));
}

// --- the cache ---------------------------------------------------------------------------------

TEST(native_returns_whole_free_segments_when_the_cache_is_emptied) {
  Gpu gpu(1_GiB);
  Block* const small = gpu.malloc(512);
  gpu.malloc(4_MiB);
  Block* const large = gpu.malloc(40_MiB);
  gpu.free({small, large});
  gpu.events();
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.events(), "segment_free 40M, segment_free 2M");
  CHECK_EQUAL(gpu.layout(), "[4M used, 16M free]");
  CHECK_EQUAL(gpu.driver.dedicated_used(), 20_MiB);
  CHECK_EQUAL(gpu.allocator.statistics().num_device_free, 2);
}

TEST(native_follows_a_new_configuration_from_then_on) {
  Gpu gpu(1_GiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.allocator.configure(AllocatorConfig::parse("max_split_size_mb:32"));
  gpu.events();
  Block* const apart = gpu.malloc(20_MiB);
  CHECK_EQUAL(gpu.events(), "segment_alloc 20M, alloc 20M");
  gpu.free({apart});
  gpu.allocator.configure(gpu.allocator.config().with("expandable_segments:True"));
  gpu.events();
  gpu.malloc(40_MiB);  // takes a free block, although its segment is an ordinary one
  CHECK_EQUAL(gpu.events(), "alloc 40M");
  gpu.malloc(30_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 40M, alloc 30M");
  gpu.allocator.configure(gpu.allocator.config().with(""));  // expandable segments stay on
  gpu.malloc(60_MiB);
  CHECK_EQUAL(gpu.events(), "segment_map 60M, alloc 60M");
  gpu.allocator.configure(gpu.allocator.config().with("expandable_segments:False"));
  gpu.malloc(5_MiB);
  CHECK_EQUAL(gpu.events(), "alloc 5M");
  gpu.malloc(30_MiB);
  CHECK_EQUAL(gpu.events(), "segment_alloc 30M, alloc 30M");
  gpu.allocator.check_invariants();
}

// --- reports -----------------------------------------------------------------------------------

TEST(native_statistics_keep_peaks_and_totals_until_they_are_reset) {
  Gpu gpu(1_GiB);
  const auto allocated = [&] {
    const Stat& stat = gpu.allocator.statistics().allocated_bytes.all;
    std::string text;
    for (const std::int64_t value : {stat.current, stat.peak, stat.allocated, stat.freed}) {
      text += short_size(static_cast<Bytes>(value)) + ' ';
    }
    return text;
  };
  gpu.free({gpu.malloc(30_MiB)});
  gpu.malloc(20_MiB);
  CHECK_EQUAL(allocated(), "20M 30M 50M 30M ");
  gpu.allocator.reset_peak_statistics();
  CHECK_EQUAL(allocated(), "20M 20M 50M 30M ");
  gpu.allocator.reset_accumulated_statistics();
  CHECK_EQUAL(allocated(), "20M 20M 0 0 ");
  CHECK_EQUAL(gpu.allocator.statistics().num_device_alloc, 0);
}

TEST(native_statistics_have_the_names_of_memory_stats) {
  Gpu gpu(1_GiB);
  gpu.malloc(5_MiB);
  for (const bool with_oom_rejections : {true, false}) {
    std::map<std::string, std::int64_t> stats;
    for (const auto& [name, value] : gpu.allocator.statistics().flatten(with_oom_rejections)) {
      stats[name] = value;
    }
    CHECK_EQUAL(stats.at("allocated_bytes.large_pool.peak"), static_cast<std::int64_t>(5_MiB));
    CHECK_EQUAL(stats.at("allocated_bytes.small_pool.peak"), 0);
    CHECK_EQUAL(stats.at("reserved_bytes.all.current"), static_cast<std::int64_t>(20_MiB));
    CHECK_EQUAL(stats.at("segment.all.allocated"), 1);
    CHECK_EQUAL(stats.at("num_device_alloc"), 1);
    CHECK_EQUAL(stats.at("max_split_size"), -1);
    CHECK_EQUAL(stats.contains("num_oom_rejections"), with_oom_rejections);
  }
}

TEST(native_describes_its_segments) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_context(7);
  const Block* const block = gpu.malloc(5_MiB - 3, 9);
  const std::vector<SegmentInfo> segments = gpu.allocator.segments();
  CHECK_EQUAL(segments.size(), 1U);
  const SegmentInfo& segment = segments.front();
  CHECK_EQUAL(segment.address, block->address);
  CHECK_EQUAL(segment.total_size, 20_MiB);
  CHECK_EQUAL(segment.stream, 9U);
  CHECK(segment.pool.is_default());
  CHECK(!segment.small);
  CHECK(!segment.expandable);
  CHECK_EQUAL(segment.blocks.size(), 2U);
  CHECK_EQUAL(segment.blocks[0].requested, 5_MiB - 3);
  CHECK_EQUAL(segment.blocks[0].context, 7U);
  CHECK_EQUAL(segment.blocks[1].address, block->address + 5_MiB);
  CHECK(segment.blocks[1].state == BlockState::inactive);
}

// In PyTorch's recordings a segment has a stack if no block was ever cut off its front.
TEST(native_keeps_the_stack_of_a_segment_until_its_first_block_is_cut) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_context(7);
  Block* const whole = gpu.malloc(24_MiB);
  CHECK_EQUAL(gpu.allocator.segments().front().context, 7U);
  gpu.free({whole});
  gpu.allocator.set_context(8);
  Block* const again = gpu.malloc(24_MiB);
  CHECK_EQUAL(gpu.allocator.segments().front().context, 7U);
  gpu.free({again});
  gpu.free({gpu.malloc(20_MiB)});
  CHECK_EQUAL(gpu.allocator.segments().size(), 1U);
  CHECK_EQUAL(gpu.allocator.segments().front().context, 0U);
}

TEST(native_records_what_happened_where_and_why) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_context(3);
  Block* const block = gpu.malloc(600, 5);
  const Address address = block->address;
  gpu.allocator.set_context(0);
  gpu.free({block});
  gpu.allocator.note_snapshot();
  const History& history = gpu.allocator.history();
  CHECK_EQUAL(history.size(), 5U);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK_EQUAL(history[i].address, address);
    CHECK_EQUAL(history[i].size, i == 0 ? 2_MiB : 600);
    CHECK_EQUAL(history[i].stream, 5U);
    CHECK_EQUAL(history[i].context, 3U);
  }
  CHECK(history[2].action == Action::free_requested);
  CHECK(history[3].action == Action::free_completed);
  CHECK(history[4].action == Action::snapshot);
}

// --- ties between equally large blocks ---------------------------------------------------------

namespace {

// Returns whether, of two equally large free segments, the lower one is taken first. The higher one
// is older.
bool takes_the_lower_segment(const char* version) {
  Gpu gpu(1_GiB, "", TorchVersion::parse(version));
  gpu.driver.feed_allocation(0x50000000, 20_MiB);
  gpu.driver.feed_allocation(0x40000000, 20_MiB);
  Block* const older = gpu.malloc(20_MiB);
  Block* const lower = gpu.malloc(20_MiB);
  CHECK(lower->address < older->address);
  gpu.free({older, lower});
  return gpu.malloc(20_MiB)->address == 0x40000000;
}

// Makes two free blocks of 2 MiB in one segment. The higher one becomes free first. Returns whether
// a request takes the lower one nevertheless.
bool takes_the_lower_block(const char* version) {
  Gpu gpu(1_GiB, "", TorchVersion::parse(version));
  Block* const all = gpu.malloc(6_MiB);
  gpu.malloc(9_MiB);
  gpu.malloc(5_MiB);
  const Address start = all->address;
  gpu.free({all});
  Block* const first = gpu.malloc(2_MiB);
  gpu.malloc(2_MiB);
  gpu.free({first});
  CHECK_EQUAL(gpu.layout(), "[2M free, 2M used, 2M free, 9M used, 5M used]");
  return gpu.malloc(2_MiB)->address == start;
}

}  // namespace

TEST(native_breaks_ties_between_segments_by_age_from_2_12_on) {
  CHECK(takes_the_lower_segment("2.9"));
  CHECK(takes_the_lower_segment("2.11"));
  CHECK(!takes_the_lower_segment("2.12"));
  CHECK(!takes_the_lower_segment("2.13"));
  CHECK(!takes_the_lower_segment("2.15"));
}

TEST(native_breaks_ties_within_a_segment_by_age_in_2_12_alone) {
  CHECK(takes_the_lower_block("2.11"));
  CHECK(!takes_the_lower_block("2.12"));
  CHECK(takes_the_lower_block("2.13"));
}

TEST(native_returns_segments_of_one_size_in_the_order_of_their_ties) {
  const auto freed = [](const char* version) {
    Gpu gpu(1_GiB, "", TorchVersion::parse(version));
    gpu.driver.feed_allocation(0x50000000, 20_MiB);
    gpu.driver.feed_allocation(0x40000000, 20_MiB);
    gpu.free({gpu.malloc(20_MiB), gpu.malloc(20_MiB)});
    gpu.events();
    gpu.allocator.empty_cache();
    return gpu.allocator.history()[0].address;
  };
  CHECK_EQUAL(freed("2.11"), Address{0x40000000});
  CHECK_EQUAL(freed("2.13"), Address{0x50000000});
}

TEST(native_takes_the_older_of_two_expandable_segments_first) {
  // Each segment reserves addresses for 40 MiB, so two blocks of 20 MiB fill it.
  Gpu gpu(1_GiB, "expandable_segments:True,expandable_segments_reserve:0.0390625");
  const Address higher = Address{1} << 44;
  gpu.driver.feed_reservation(higher);
  gpu.driver.feed_reservation(Address{1} << 43);
  Block* const older = gpu.malloc(20_MiB);
  gpu.malloc(20_MiB);
  Block* const lower = gpu.malloc(20_MiB);
  gpu.malloc(20_MiB);
  CHECK(lower->address < older->address);
  gpu.free({older, lower});
  CHECK_EQUAL(gpu.malloc(20_MiB)->address, higher);
}

}  // namespace plimsoll
