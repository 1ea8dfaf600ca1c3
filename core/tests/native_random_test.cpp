// Runs random programs under many configurations. Checks after every step that all invariants hold,
// that live blocks are unchanged, and that the driver gave as many bytes as are reserved.

#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

struct Setting {
  const char* config;
  TorchVersion version;
  std::optional<Bytes> limit;
};

const std::vector<Setting> kSettings{
    {"", {2, 9}, {}},
    {"", {2, 13}, 200_MiB},
    {"roundup_power2_divisions:8", {2, 11}, {}},
    {"max_split_size_mb:32,max_non_split_rounding_mb:24", {2, 10}, {}},
    {"garbage_collection_threshold:0.6", {2, 11}, 220_MiB},
    {"garbage_collection_threshold:0.3,max_split_size_mb:24", {2, 13}, 240_MiB},
    {"large_segment_size_mb:40,throw_on_cudamalloc_oom:True", {2, 12}, 240_MiB},
    {"expandable_segments:True", {2, 11}, {}},
    {"expandable_segments:True,max_split_size_mb:32", {2, 13}, 230_MiB},
    {"expandable_segments:True,garbage_collection_threshold:0.5", {2, 9}, 200_MiB},
};

// The driver calls into which the tests inject failures. The allocator has to survive each failure.
// The tests inject none into `unmap`, `release` and `unreserve`.
constexpr Call kFallible[] = {Call::allocate, Call::deallocate, Call::reserve,
                              Call::create,   Call::map,        Call::set_access,
                              Call::record,   Call::query,      Call::synchronize};

// Counts the free blocks that share their segment with other blocks, except in expandable segments.
std::int64_t split_blocks(const NativeAllocator& allocator) {
  std::int64_t count = 0;
  for (const SegmentInfo& segment : allocator.segments()) {
    if (segment.expandable || segment.blocks.size() == 1) continue;
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::inactive) ++count;
    }
  }
  return count;
}

void check_statistics(const Statistics& statistics) {
  for (const PoolStat* const stat :
       {&statistics.allocation, &statistics.segment, &statistics.active, &statistics.inactive_split,
        &statistics.allocated_bytes, &statistics.reserved_bytes, &statistics.active_bytes,
        &statistics.inactive_split_bytes, &statistics.requested_bytes}) {
    for (const Stat* const part : {&stat->all, &stat->small_pool, &stat->large_pool}) {
      CHECK(part->current >= 0 && part->peak >= part->current);
      CHECK_EQUAL(part->current, part->allocated - part->freed);
    }
    CHECK_EQUAL(stat->all.current, stat->small_pool.current + stat->large_pool.current);
  }
}

void check_state(const Gpu& gpu, const RandomProgram& program) {
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.driver.dedicated_used(), gpu.reserved());
  Bytes requested = 0;
  Address end = 0;
  for (const auto& [address, live] : program.live()) {
    CHECK(address >= end);
    CHECK(live.block->allocated && live.block->address == address);
    CHECK(live.block->size == live.size && live.block->requested == live.requested);
    end = address + live.size;
    requested += live.requested;
  }
  const Statistics& statistics = gpu.allocator.statistics();
  check_statistics(statistics);
  CHECK_EQUAL(statistics.allocation.all.current, static_cast<std::int64_t>(program.live().size()));
  CHECK(statistics.requested_bytes.all.current >= static_cast<std::int64_t>(requested));
  CHECK_EQUAL(statistics.inactive_split.all.current, split_blocks(gpu.allocator));
}

void run(const Setting& setting, std::uint64_t seed, bool has_faults) {
  Gpu gpu(256_MiB, setting.config, setting.version);
  gpu.allocator.set_limit(setting.limit);
  RandomProgram program(gpu, seed, {.beyond_history = true});
  Random random(seed);
  for (int i = 0; i < 1500; ++i) {
    if (has_faults && random.one_in(5)) {
      const Status status = random.one_in(3) ? Status::not_supported : Status::out_of_memory;
      gpu.driver.inject({random.pick(kFallible), random.below(3), 1, status});
    }
    try {
      program.step();
    } catch (const OutOfMemory&) {
      const Bytes rounded = gpu.allocator.config().round_request(program.last_request());
      CHECK(gpu.events().ends_with("oom " + short_size(rounded)));
    } catch (const DriverError&) {
      CHECK(has_faults);
    }
    gpu.driver.clear_faults();
    gpu.events();
    check_state(gpu, program);
  }
  program.end();
  check_state(gpu, program);
  CHECK(gpu.allocator.segments().empty());
}

// Returns whether the request was served without returning memory to the driver first.
bool is_served_at_once(std::string_view events, std::string_view alloc) {
  return events.ends_with(alloc) && events.find("segment_free") == events.npos &&
         events.find("segment_unmap") == events.npos;
}

}  // namespace

TEST(native_keeps_its_invariants_in_random_programs) {
  for (const Setting& setting : kSettings) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) run(setting, seed, false);
  }
}

TEST(native_keeps_its_invariants_when_driver_calls_fail) {
  for (const Setting& setting : kSettings) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) run(setting, seed, true);
  }
}

TEST(native_foresees_every_request_of_random_programs) {
  using Outlook = NativeAllocator::Outlook;
  for (const Setting& setting : kSettings) {
    Gpu gpu(256_MiB, setting.config, setting.version);
    gpu.allocator.set_limit(setting.limit);
    RandomProgram program(gpu, 7, {.uses_pools = false});
    Random random(7);
    for (int i = 0; i < 2000; ++i) {
      message_of<OutOfMemory>([&] { return (program.step(), 0); });
      gpu.allocator.poll();
      gpu.events();
      const Bytes size = random.between(1, 30_MiB);
      const Outlook outlook = gpu.allocator.outlook(size, 0);
      CHECK_EQUAL(gpu.events(), "");
      Block* block = nullptr;
      const bool failed =
          !message_of<OutOfMemory>([&] { return block = gpu.malloc(size); }).empty();
      const std::string events = gpu.events();
      const std::string alloc = "alloc " + short_size(size);
      if (outlook == Outlook::cached) CHECK_EQUAL(events, alloc);
      if (outlook == Outlook::grows) CHECK(is_served_at_once(events, alloc));
      if (failed) CHECK(outlook == Outlook::refused || outlook == Outlook::rejected);
      if (outlook == Outlook::rejected) CHECK_EQUAL(events, "");
      if (block != nullptr) gpu.allocator.free(block);
    }
  }
}

}  // namespace plimsoll
