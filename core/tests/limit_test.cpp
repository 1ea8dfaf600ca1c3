#include "plimsoll/replay/limit.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

LimitEvidence evidence_of(const Gpu& gpu) {
  LimitEvidence evidence(gpu.allocator.config(), 0);
  evidence.feed(EventList(gpu.allocator.history()).span());
  return evidence;
}

// Returns the range as "80M to 90M": the limit is at least the first size and below the second.
std::string range_of(const LimitEvidence& evidence) {
  const auto range = evidence.range();
  return range ? short_size(range->least) + " to " + short_size(range->below) : "none";
}

bool runs_out_of_memory(Gpu& gpu, Bytes size) {
  return !message_of<OutOfMemory>([&] { return gpu.malloc(size); }).empty();
}

}  // namespace

TEST(limit_shows_between_what_was_given_and_what_was_refused) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_limit(100_MiB);
  gpu.malloc(80_MiB);
  CHECK(runs_out_of_memory(gpu, 30_MiB));
  CHECK_EQUAL(range_of(evidence_of(gpu)), "80M to 110M");
  gpu.malloc(12_MiB);
  CHECK(runs_out_of_memory(gpu, 20_MiB));
  CHECK_EQUAL(range_of(evidence_of(gpu)), "92M to 110M");
  CHECK(runs_out_of_memory(gpu, 10_MiB));
  CHECK_EQUAL(range_of(evidence_of(gpu)), "92M to 102M");
}

TEST(limit_shows_where_cached_memory_went_back_before_a_request) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_limit(100_MiB);
  gpu.malloc(40_MiB);
  gpu.free({gpu.malloc(50_MiB)});
  gpu.malloc(58_MiB);
  CHECK_EQUAL(range_of(evidence_of(gpu)), "98M to 148M");
}

TEST(limit_does_not_show_without_a_refusal) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_limit(100_MiB);
  gpu.free({gpu.malloc(80_MiB)});
  gpu.malloc(60_MiB);
  CHECK_EQUAL(range_of(evidence_of(gpu)), "none");
}

TEST(limit_does_not_show_when_the_program_empties_its_cache_by_itself) {
  Gpu gpu(1_GiB);
  Block* const block = gpu.malloc(50_MiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.allocator.empty_cache();
  // The next event after the empty_cache above is a free, not a request. So the recording shows
  // that the program itself empties its cache.
  gpu.free({block});
  gpu.allocator.empty_cache();
  gpu.malloc(60_MiB);
  CHECK_EQUAL(range_of(evidence_of(gpu)), "none");
}

TEST(limit_shows_in_a_failure_even_if_the_program_empties_its_cache) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_limit(100_MiB);
  Block* const block = gpu.malloc(50_MiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.allocator.empty_cache();
  gpu.free({block});
  gpu.malloc(60_MiB);  // releases the cached 50 MiB, as empty_cache would
  CHECK(runs_out_of_memory(gpu, 70_MiB));
  CHECK_EQUAL(range_of(evidence_of(gpu)), "90M to 110M");
}

TEST(limit_shows_in_what_garbage_collection_returns) {
  Gpu gpu(1_GiB, "garbage_collection_threshold:0.5");
  gpu.allocator.set_limit(100_MiB);
  gpu.free({gpu.malloc(60_MiB)});
  // The threshold is 50 MiB and 60 MiB are reserved, so the limit is below 120 MiB.
  gpu.malloc(30_MiB, 1);
  CHECK_EQUAL(range_of(evidence_of(gpu)), "60M to 120M");
}

TEST(limit_counts_what_was_reserved_before_the_recording) {
  LimitEvidence evidence(AllocatorConfig{}, 50_MiB);
  const std::vector<TraceEvent> events{{Action::segment_alloc, 4096, 30_MiB, 0, {}, 0, 0},
                                       {Action::alloc, 4096, 30_MiB, 0, {}, 0, 0},
                                       {Action::oom, 0, 40_MiB, 0, {}, 0, 0}};
  CHECK(!evidence.has_segments());
  evidence.feed(EventList(events).span());
  CHECK(evidence.has_segments());
  CHECK_EQUAL(range_of(evidence), "80M to 120M");
}

TEST(limit_lies_within_the_range_that_random_programs_show) {
  std::size_t shown = 0;
  for (const std::string_view config :
       {"", "max_split_size_mb:32", "garbage_collection_threshold:0.7", "expandable_segments:True",
        "roundup_power2_divisions:4"}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      Random random(seed);
      const Bytes limit = random.between(100, 250) * 1_MiB;
      Gpu gpu(4_GiB, config);
      gpu.allocator.set_limit(limit);
      RandomProgram program(gpu, seed, {.empties_cache = false});
      for (int i = 0; i < 500; ++i) {
        message_of<OutOfMemory>([&] { return (program.step(), 0); });
      }
      const EventList events(gpu.allocator.history());
      LimitEvidence in_one(gpu.allocator.config(), 0);
      in_one.feed(events.span());
      LimitEvidence in_batches(gpu.allocator.config(), 0);
      for (std::size_t first = 0; first < events.count(); first += 3) {
        in_batches.feed(events.span(first, std::min<std::size_t>(3, events.count() - first)));
      }
      CHECK_EQUAL(range_of(in_one), range_of(in_batches));
      const auto range = in_one.range();
      if (!range) continue;
      ++shown;
      CHECK(range->least <= limit && limit < range->below);
    }
  }
  CHECK(shown > 30);
}

}  // namespace plimsoll
