#include "plimsoll/replay/replayer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/uncached.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr Address kA = 0x7f00'0000'0000;
constexpr Address kB = 0x7f10'0000'0000;
constexpr Address kC = 0x7f20'0000'0000;
constexpr PoolId kPool{0, 1};
constexpr ReplayOptions kCompare{.compare = true};
constexpr ReplayOptions kOnly{};

TraceEvent event(Action action, Address address, Bytes size, PoolId pool = {}) {
  return {action, address, size, 0, pool, 0, 0};
}
TraceEvent alloc(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::alloc, address, size, pool);
}
TraceEvent free_requested(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::free_requested, address, size, pool);
}
TraceEvent free_completed(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::free_completed, address, size, pool);
}
TraceEvent segment_alloc(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::segment_alloc, address, size, pool);
}
TraceEvent segment_map(Address address, Bytes size) {
  return event(Action::segment_map, address, size);
}
TraceEvent segment_unmap(Address address, Bytes size) {
  return event(Action::segment_unmap, address, size);
}
TraceEvent segment_free(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::segment_free, address, size, pool);
}

// A replay on a simulated GPU of its own.
struct Replay {
  explicit Replay(const ReplayOptions& options, Bytes memory = 1_GiB, std::string_view config = "",
                  TorchVersion version = {})
      : gpu(memory, config, version),
        replayer(gpu.allocator, gpu.driver, &gpu.allocator, options) {}

  Replay& run(const EventList& events, std::size_t batch = 1000) {
    for (std::size_t first = 0; first < events.count(); first += batch) {
      replayer.feed(events.span(first, std::min(batch, events.count() - first)));
    }
    replayer.finish();
    return *this;
  }
  Replay& run(const std::vector<TraceEvent>& events) { return run(EventList(events)); }

  // Returns the first difference as "event 3: alloc 5M, not alloc 4M"; empty if there is none.
  [[nodiscard]] std::string difference() const {
    const auto& difference = replayer.first_difference();
    if (!difference) return "";
    const auto show = [](const std::optional<TraceEvent>& entry) {
      if (!entry) return std::string("nothing");
      return std::string(to_string(entry->action)) + ' ' + short_size(entry->size);
    };
    return "event " + std::to_string(difference->event) + ": " + show(difference->recorded) +
           ", not " + show(difference->replayed);
  }

  Gpu gpu;
  Replayer replayer;
};

std::string refusal(const std::vector<TraceEvent>& events) {
  return message_of<ReplayError>([&] { return (Replay(kOnly).run(events), 0); });
}

struct Setting {
  const char* config;
  TorchVersion version;
  std::optional<Bytes> limit;
  // False if the events do not always show whether the program or the allocator caused them. With
  // such a setting, the random program does not use streams or empty its cache.
  bool is_clear = true;
};

const std::vector<Setting> kSettings{
    {"", {2, 9}, {}},
    {"", {2, 13}, 200_MiB},
    {"roundup_power2_divisions:8", {2, 11}, {}},
    {"large_segment_size_mb:40,throw_on_cudamalloc_oom:True", {2, 12}, 240_MiB},
    {"expandable_segments:True", {2, 11}, {}},
    {"expandable_segments:True", {2, 13}, 200_MiB},
    {"max_split_size_mb:32,max_non_split_rounding_mb:24", {2, 10}, {}, false},
    {"garbage_collection_threshold:0.6", {2, 11}, 220_MiB, false},
    {"garbage_collection_threshold:0.3,max_split_size_mb:24", {2, 13}, 240_MiB, false},
};

// Runs a random program, and keeps its history and its final state.
struct RecordedProgram {
  RecordedProgram(const Setting& setting, std::uint64_t seed, RandomProgram::Options options,
                  int steps) {
    Gpu gpu(256_MiB, setting.config, setting.version);
    gpu.allocator.set_limit(setting.limit);
    RandomProgram program(gpu, seed, options);
    for (int i = 0; i < steps; ++i) {
      message_of<OutOfMemory>([&] { return (program.step(), 0); });
    }
    events = EventList(gpu.allocator.history());
    state = describe(gpu.allocator.segments());
  }

  EventList events;
  std::string state;
};

}  // namespace

// --- comparing ---------------------------------------------------------------------------------

TEST(replay_repeats_random_programs_exactly) {
  for (const Setting& setting : kSettings) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const RecordedProgram program(setting, seed,
                                    {.uses_streams = setting.is_clear && seed % 2 == 0,
                                     .uses_pools = seed % 4 < 2,
                                     .empties_cache = setting.is_clear},
                                    400);
      Replay replay(kCompare, 256_MiB, setting.config, setting.version);
      replay.gpu.allocator.set_limit(setting.limit);
      replay.run(program.events);
      CHECK_EQUAL(replay.difference(), "");
      CHECK_EQUAL(describe(replay.gpu.allocator.segments()), program.state);
      CHECK_EQUAL(replay.replayer.events(), program.events.count());
    }
  }
}

TEST(replay_does_not_depend_on_where_batches_end) {
  const RecordedProgram program(kSettings[1], 2, {}, 150);
  for (const std::size_t changed : {program.events.count(), std::size_t{100}}) {
    EventList events;
    for (std::size_t i = 0; i < program.events.count(); ++i) {
      TraceEvent entry = program.events.span()[i];
      if (i > changed && entry.action == Action::alloc) ++entry.size;
      events.add(entry);
    }
    const auto outcome = [&](std::size_t batch) {
      Replay replay(kCompare, 256_MiB);
      replay.gpu.allocator.set_limit(200_MiB);
      replay.run(events, batch);
      std::string text = replay.difference() + describe(replay.gpu.allocator.segments()) +
                         std::to_string(replay.replayer.peak().event);
      for (const std::uint64_t emptied : replay.replayer.emptied()) {
        text += ' ' + std::to_string(emptied);
      }
      return text;
    };
    const std::string at_once = outcome(events.count());
    CHECK_EQUAL(at_once.starts_with("event"), changed == 100);
    for (std::size_t batch = 1; batch < events.count(); ++batch) {
      CHECK_EQUAL(outcome(batch), at_once);
    }
  }
}

TEST(replay_finds_the_first_event_that_differs) {
  const std::vector<TraceEvent> events{segment_alloc(kA, 20_MiB),         // event 0
                                       alloc(kA, 5_MiB),                  // 1
                                       alloc(kA + 5_MiB, 4_MiB),          // 2
                                       free_requested(kA, 5_MiB),         // 3
                                       free_completed(kA, 5_MiB),         // 4
                                       alloc(kA, 5_MiB),                  // 5
                                       segment_alloc(kB, 20_MiB),         // 6
                                       alloc(kB, 11_MiB + 512),           // 7
                                       alloc(kB + 11_MiB + 512, 7_MiB)};  // event 8
  const auto difference_with = [&](std::size_t changed, const TraceEvent& entry) {
    std::vector<TraceEvent> other = events;
    other[changed] = entry;
    return Replay(kCompare).run(other).difference();
  };
  CHECK_EQUAL(
      difference_with(8, events[8]),
      "event 6: segment_alloc 20M, not segment_alloc 12M");  // a request for 11 MiB + 512 takes 12M
  CHECK_EQUAL(difference_with(2, alloc(kA + 6_MiB, 4_MiB)), "event 2: alloc 4M, not alloc 4M");
  CHECK_EQUAL(difference_with(0, segment_alloc(kA, 22_MiB)),
              "event 0: segment_alloc 22M, not segment_alloc 20M");
  CHECK_EQUAL(difference_with(0, event(Action::snapshot, 0, 0)),
              "event 1: alloc 5M, not segment_alloc 20M");
  CHECK_EQUAL(difference_with(5, event(Action::oom, 0, 5_MiB)), "event 5: oom 5M, not alloc 5M");
}

TEST(replay_finds_what_the_allocator_did_beyond_the_recording) {
  const std::vector<TraceEvent> events{segment_alloc(kA, 30_MiB),  alloc(kA, 30_MiB),
                                       free_requested(kA, 30_MiB), free_completed(kA, 30_MiB),
                                       segment_free(kA, 30_MiB),   segment_alloc(kB, 40_MiB),
                                       alloc(kB, 40_MiB)};
  CHECK_EQUAL(Replay(kCompare).run(events).difference(), "");
  std::vector<TraceEvent> without_release = events;
  without_release.erase(without_release.begin() + 4);
  CHECK_EQUAL(Replay(kCompare, 64_MiB).run(without_release).difference(),
              "event 4: segment_alloc 40M, not segment_free 30M");
}

TEST(replay_gives_segments_their_recorded_addresses_only_to_compare) {
  const std::vector<TraceEvent> events{segment_alloc(kA, 20_MiB), alloc(kA, 5_MiB)};
  CHECK_EQUAL(Replay(kCompare).run(events).gpu.allocator.segments()[0].address, kA);
  CHECK_EQUAL(Replay(kOnly).run(events).gpu.layout(), "[5M used, 15M free]");
}

// --- contradictions ----------------------------------------------------------------------------

TEST(replay_refuses_histories_that_cannot_be) {
  CHECK_EQUAL(refusal({alloc(kA, 512), alloc(kB, 512), alloc(kA, 512)}),
              "event 2 allocates 0x7f0000000000, which is allocated already");
  CHECK_EQUAL(refusal({alloc(kA, 512), alloc(kB, 0)}), "event 1 asks for 0 bytes");
  CHECK_EQUAL(refusal({alloc(kA, 512), free_requested(kB, 512), free_completed(kB, 512)}),
              "event 1 frees 0x7f1000000000, which is not allocated");
  CHECK_EQUAL(refusal({alloc(kA, 512), free_requested(kB, 512), alloc(kB, 512)}),
              "event 1 frees 0x7f1000000000, which is not allocated");
  CHECK_EQUAL(refusal({alloc(kA, 512), free_completed(kA, 512)}),
              "event 1 completes a free of 0x7f0000000000 that was never requested");
  CHECK_EQUAL(
      refusal({alloc(kA, 512), free_requested(kA, 512), free_completed(kA, 512), alloc(kA, 512)}),
      "");
}

// --- emptied caches ----------------------------------------------------------------------------

TEST(replay_tells_an_emptied_cache_from_a_forced_release) {
  const std::vector<TraceEvent> events{segment_alloc(kA, 30_MiB),  alloc(kA, 30_MiB),
                                       free_requested(kA, 30_MiB), free_completed(kA, 30_MiB),
                                       segment_free(kA, 30_MiB),   segment_alloc(kB, 40_MiB),
                                       alloc(kB, 40_MiB)};
  for (const bool is_forced : {false, true}) {
    Replay replay(kCompare);
    if (is_forced) replay.gpu.allocator.set_limit(60_MiB);
    replay.run(events);
    CHECK_EQUAL(replay.difference(), "");
    const auto emptied = is_forced ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{4};
    CHECK(replay.replayer.emptied() == emptied);
    CHECK_EQUAL(replay.gpu.allocator.statistics().num_alloc_retries, is_forced ? 1 : 0);
  }
}

TEST(replay_takes_a_release_before_anything_else_for_an_emptied_cache) {
  const std::vector<TraceEvent> events{segment_alloc(kA, 30_MiB),  alloc(kA, 30_MiB),
                                       segment_alloc(kB, 40_MiB),  alloc(kB, 40_MiB),
                                       free_requested(kA, 30_MiB), free_completed(kA, 30_MiB),
                                       segment_free(kA, 30_MiB),   free_requested(kB, 40_MiB),
                                       free_completed(kB, 40_MiB), segment_free(kB, 40_MiB)};
  Replay replay(kCompare);
  replay.run(events);
  CHECK_EQUAL(replay.difference(), "");
  CHECK((replay.replayer.emptied() == std::vector<std::uint64_t>{6, 9}));
  CHECK_EQUAL(replay.gpu.layout(), "");
}

TEST(replay_takes_a_release_for_an_emptied_cache_where_requests_are_only_rejected) {
  Gpu gpu(50_MiB, "throw_on_cudamalloc_oom:True");
  gpu.free({gpu.malloc(30_MiB)});
  gpu.allocator.empty_cache();
  gpu.malloc(40_MiB);
  Replay replay(kCompare, 50_MiB, "throw_on_cudamalloc_oom:True");
  replay.run(EventList(gpu.allocator.history()));
  CHECK_EQUAL(replay.difference(), "");
  CHECK((replay.replayer.emptied() == std::vector<std::uint64_t>{4}));
}

TEST(replay_empties_the_cache_only_where_it_is_told_to) {
  const EventList events({segment_alloc(kA, 30_MiB), alloc(kA, 30_MiB), free_requested(kA, 30_MiB),
                          free_completed(kA, 30_MiB), segment_free(kA, 30_MiB),
                          segment_alloc(kB, 40_MiB), alloc(kB, 40_MiB)});
  for (const auto& emptied : {std::vector<std::uint64_t>{4}, std::vector<std::uint64_t>{}}) {
    const ReplayOptions options{.emptied = &emptied};
    Replay replay(options);
    replay.run(events);
    CHECK_EQUAL(replay.gpu.reserved(), emptied.empty() ? 70_MiB : 40_MiB);
  }
}

// The elastic allocator moves its own memory to other addresses, during a request and at a free.
// The replay must not take such an unmapping for an `empty_cache` of the program.
TEST(replay_takes_memory_that_moved_for_no_emptied_cache) {
  std::vector<TraceEvent> events{
      segment_map(kA, 30_MiB),    alloc(kA, 30_MiB),          alloc(kC, 1_MiB),
      free_requested(kA, 30_MiB), free_completed(kA, 30_MiB), segment_unmap(kA, 30_MiB),
      segment_map(kB, 40_MiB),    alloc(kB, 40_MiB),          free_requested(kB, 40_MiB),
      free_completed(kB, 40_MiB), segment_unmap(kB, 30_MiB),  segment_map(kA, 30_MiB),
      free_requested(kC, 1_MiB),  free_completed(kC, 1_MiB)};
  const auto emptied = [&](RecordedAllocator recorded) {
    return Replay({.recorded = recorded, .compare = true}).run(events).replayer.emptied();
  };
  CHECK(emptied(RecordedAllocator::elastic).empty());
  CHECK((emptied(RecordedAllocator::native) == std::vector<std::uint64_t>{5, 10}));
  events.insert(events.end() - 2, segment_unmap(kA, 30_MiB));
  CHECK((emptied(RecordedAllocator::elastic) == std::vector<std::uint64_t>{10}));
}

TEST(replay_takes_what_an_allocator_without_a_cache_gives_back_for_no_emptied_cache) {
  std::vector<TraceEvent> events;
  for (int i = 0; i < 3; ++i) {
    for (const TraceEvent& event :
         {segment_alloc(kA, 30_MiB), alloc(kA, 30_MiB), free_requested(kA, 30_MiB),
          free_completed(kA, 30_MiB), segment_free(kA, 30_MiB)}) {
      events.push_back(event);
    }
  }
  const ReplayOptions options{.recorded = RecordedAllocator::uncached, .compare = true};
  Replay replay(options);
  replay.run(events);
  CHECK(replay.replayer.emptied().empty());
  CHECK_EQUAL(replay.gpu.allocator.statistics().num_device_alloc, 1);
}

// --- running out of memory ---------------------------------------------------------------------

TEST(replay_stops_where_memory_runs_out_that_the_recording_had) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB), alloc(kB, 40_MiB), alloc(kC, 50_MiB)};
  Replay replay(kOnly, 60_MiB);
  replay.run(events);
  CHECK(replay.replayer.stopped());
  CHECK_EQUAL(replay.replayer.first_oom().value_or(0), 1U);
  CHECK_EQUAL(replay.replayer.events(), 1U);
  CHECK_EQUAL(replay.replayer.first_oom_report()->tried, 40_MiB);
  CHECK_EQUAL(replay.gpu.layout(), "[30M used]");
}

TEST(replay_goes_on_after_a_recorded_failure) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB), event(Action::oom, 0, 40_MiB),
                                       alloc(kC, 12_MiB)};
  for (const bool is_avoided : {false, true}) {
    Replay replay(kOnly, is_avoided ? 1_GiB : 60_MiB);
    replay.run(events);
    CHECK(!replay.replayer.stopped());
    CHECK_EQUAL(replay.replayer.first_oom().has_value(), !is_avoided);
    CHECK_EQUAL(replay.replayer.avoided_ooms(), is_avoided ? 1U : 0U);
    CHECK_EQUAL(replay.gpu.allocator.statistics().allocation.all.current, 2);
    CHECK_EQUAL(replay.gpu.allocator.statistics().num_ooms, is_avoided ? 0 : 1);
  }
}

TEST(replay_completes_frees_too_late_for_the_request_that_waited_for_them) {
  Gpu gpu(20_MiB);
  gpu.malloc(5_MiB);
  Block* const block = gpu.malloc(15_MiB);
  gpu.driver.hold(2);
  gpu.allocator.record_stream(block, 2);
  gpu.free({block});
  gpu.allocator.note_snapshot();
  // The request waits until the free is complete, but then does not look for a free block again.
  CHECK_THROWS(gpu.malloc(15_MiB), OutOfMemory);
  Replay replay(kCompare, 20_MiB);
  replay.run(EventList(gpu.allocator.history()));
  CHECK_EQUAL(replay.difference(), "");
  CHECK_EQUAL(replay.replayer.avoided_ooms(), 0U);
}

// --- frees that wait ---------------------------------------------------------------------------

TEST(replay_completes_frees_as_recorded_at_once_or_late) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB), free_requested(kA, 30_MiB),
                                       alloc(kB, 30_MiB),  // allocated while the free is pending
                                       free_completed(kA, 30_MiB), alloc(kC, 30_MiB)};
  const auto reserved = [&](Completion completion) {
    Replay replay(ReplayOptions{.completion = completion});
    replay.run(events);
    CHECK(replay.replayer.had_pending_frees());
    return replay.gpu.reserved();
  };
  CHECK_EQUAL(reserved(Completion::recorded), 60_MiB);
  CHECK_EQUAL(reserved(Completion::at_once), 60_MiB);
  CHECK_EQUAL(reserved(Completion::late), 90_MiB);
}

TEST(replay_that_completes_at_once_reuses_what_waited_in_the_recording) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB), free_requested(kA, 30_MiB),
                                       alloc(kB, 30_MiB), free_completed(kA, 30_MiB)};
  CHECK_EQUAL(Replay(ReplayOptions{.completion = Completion::at_once}).run(events).gpu.reserved(),
              30_MiB);
  CHECK_EQUAL(Replay(kOnly).run(events).gpu.reserved(), 60_MiB);
}

TEST(replay_waits_for_late_frees_when_memory_runs_short) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB), free_requested(kA, 30_MiB),
                                       alloc(kB, 40_MiB), free_completed(kA, 30_MiB)};
  Replay replay(ReplayOptions{.completion = Completion::late}, 60_MiB);
  replay.run(events);
  CHECK(!replay.replayer.stopped());
  CHECK_EQUAL(replay.gpu.layout(), "[40M used]");
}

TEST(replay_keeps_a_free_waiting_that_the_recording_never_completes) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB), free_requested(kA, 30_MiB)};
  CHECK_EQUAL(Replay(kOnly).run(events).gpu.layout(), "[30M pending]");
}

// --- private pools -----------------------------------------------------------------------------

TEST(replay_sends_requests_to_their_recorded_pools) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB, kPool), free_requested(kA, 30_MiB, kPool),
                                       free_completed(kA, 30_MiB, kPool), alloc(kB, 30_MiB),
                                       alloc(kC, 30_MiB, kPool)};
  Replay replay(kOnly);
  replay.run(events);
  const std::vector<SegmentInfo> segments = replay.gpu.allocator.segments();
  CHECK_EQUAL(segments.size(), 2U);
  CHECK(segments[0].pool.is_default() != segments[1].pool.is_default());
}

TEST(replay_releases_a_pool_that_was_emptied_and_lets_it_be_used_again) {
  // In these events, the pool is emptied right before a request for 40 MiB. Under a limit of 1 GiB
  // there was room for the request, so the program itself must have emptied the pool. Under a limit
  // of 60 MiB, the allocator emptied it to make room for the request.
  for (const Bytes limit : {1_GiB, 60_MiB}) {
    const std::vector<TraceEvent> events{segment_alloc(kA, 30_MiB, kPool),
                                         alloc(kA, 30_MiB, kPool),
                                         free_requested(kA, 30_MiB, kPool),
                                         free_completed(kA, 30_MiB, kPool),
                                         segment_free(kA, 30_MiB, kPool),
                                         segment_alloc(kB, 40_MiB),
                                         alloc(kB, 40_MiB),
                                         segment_alloc(kC, 12_MiB, kPool),
                                         alloc(kC, 12_MiB, kPool)};
    Replay replay(kCompare);
    replay.gpu.allocator.set_limit(limit);
    replay.run(events);
    CHECK_EQUAL(replay.difference(), "");
    CHECK_EQUAL(replay.gpu.allocator.segments().size(), 2U);
  }
}

TEST(replay_goes_on_in_a_pool_that_was_emptied_just_before) {
  const std::vector<TraceEvent> events{
      segment_alloc(kA, 30_MiB, kPool),  alloc(kA, 30_MiB, kPool),
      free_requested(kA, 30_MiB, kPool), free_completed(kA, 30_MiB, kPool),
      segment_free(kA, 30_MiB, kPool),   segment_alloc(kB, 40_MiB, kPool),
      alloc(kB, 40_MiB, kPool)};
  Replay replay(kCompare);
  replay.run(events);
  CHECK_EQUAL(replay.difference(), "");
  CHECK(replay.gpu.allocator.segments().at(0).pool == kPool);
}

// --- results -----------------------------------------------------------------------------------

TEST(replay_notes_the_state_at_its_peak) {
  const std::vector<TraceEvent> events{alloc(kA, 30_MiB),          alloc(kB, 5_MiB - 100),
                                       free_requested(kA, 30_MiB), free_completed(kA, 30_MiB),
                                       alloc(kC, 40_MiB),          free_requested(kC, 40_MiB),
                                       free_completed(kC, 40_MiB), alloc(kA, 30_MiB)};
  Replay replay(kOnly);
  replay.run(events);
  const PeakState& peak = replay.replayer.peak();
  CHECK_EQUAL(peak.event, 4U);
  CHECK_EQUAL(peak.reserved, 90_MiB);
  CHECK_EQUAL(peak.active, 45_MiB);
  CHECK_EQUAL(peak.allocated, 45_MiB);
  CHECK_EQUAL(peak.requested, 45_MiB - 100);
  CHECK_EQUAL(peak.inactive_split, 15_MiB);
}

TEST(replay_notes_the_fullest_moment_of_its_peak) {
  const std::vector<TraceEvent> events{
      alloc(kA, 40_MiB), free_requested(kA, 40_MiB), free_completed(kA, 40_MiB), alloc(kB, 60_MiB),
      alloc(kA, 40_MiB), free_requested(kA, 40_MiB), free_completed(kA, 40_MiB), alloc(kC, 12_MiB)};
  Replay replay(kOnly);
  replay.run(events);
  const PeakState& peak = replay.replayer.peak();
  CHECK_EQUAL(peak.event, 4U);  // reserved memory is at its peak since event 3
  CHECK_EQUAL(peak.reserved, 100_MiB);
  CHECK_EQUAL(peak.active, 100_MiB);
}

TEST(replay_goes_on_from_a_restored_state) {
  Gpu gpu(1_GiB);
  gpu.allocator.begin_allocate_to_pool(kPool, {});
  gpu.malloc(3_MiB);
  gpu.allocator.end_allocate_to_pool(kPool);
  Block* const first = gpu.malloc(5_MiB, 3);
  Block* const second = gpu.malloc(4_MiB, 3);
  gpu.malloc(600);
  gpu.driver.hold(2);
  gpu.allocator.record_stream(first, 2);
  gpu.free({first});
  const std::vector<SegmentInfo> start = gpu.allocator.segments();
  gpu.allocator.history().clear();
  gpu.free({second});
  gpu.driver.finish(2);
  gpu.malloc(12_MiB, 3);

  Replay replay(kCompare);
  replay.replayer.restore(start);
  CHECK_EQUAL(describe(replay.gpu.allocator.segments()), describe(start));
  replay.gpu.allocator.check_invariants();
  replay.run(EventList(gpu.allocator.history()));
  CHECK_EQUAL(replay.difference(), "");
  CHECK_EQUAL(describe(replay.gpu.allocator.segments()), describe(gpu.allocator.segments()));
}

TEST(replay_runs_any_allocator) {
  SimulatedHost host(0);
  SimulatedDriver driver(host, 1_GiB);
  UncachedAllocator allocator(driver);
  Replayer replayer(allocator, driver, nullptr, kOnly);
  const EventList events({segment_alloc(kA, 20_MiB), alloc(kA, 5_MiB), free_requested(kA, 5_MiB),
                          free_completed(kA, 5_MiB), alloc(kA, 3_MiB)});
  replayer.feed(events.span());
  replayer.finish();
  CHECK_EQUAL(driver.dedicated_used(), 4_MiB);
  allocator.check_invariants();
}

}  // namespace plimsoll
