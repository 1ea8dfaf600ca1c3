#include "plimsoll/replay/start_state.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "plimsoll/replay/replayer.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr Address kA = 0x7f00'0000'0000;
// Up to this version, PyTorch's allocator chooses between blocks of the same size by address only.
// Later versions also use the age of segments, which a snapshot does not contain.
constexpr TorchVersion kByAddress{2, 11};
constexpr std::string_view kExpandable = "expandable_segments:True";

TraceEvent event(Action action, Address address, Bytes size) {
  return {action, address, size, 0, {}, 0, 0};
}

SegmentInfo segment(Bytes size, const std::vector<BlockInfo>& blocks) {
  return {kA, size, 0, {}, false, false, 0, blocks};
}

// Reconstructs the state in which the GPU's history began. A test clears the history at some point,
// so the history does not begin with the first request.
std::vector<SegmentInfo> start_of(const Gpu& gpu) {
  const EventList events(gpu.allocator.history());
  return reconstruct_start(events.span(), gpu.allocator.segments(), gpu.allocator.config());
}

std::string refusal(const std::vector<TraceEvent>& events,
                    const std::vector<SegmentInfo>& segments) {
  const std::string message = message_of<ReplayError>(
      [&] { return reconstruct_start(EventList(events).span(), segments, AllocatorConfig{}); });
  const std::size_t reason = message.find(": ");
  return reason == std::string::npos ? message : message.substr(reason + 2);
}

// Returns the final state of a replay that begins from a reconstructed start.
std::string end_of_replay(const EventSpan& events, const std::vector<SegmentInfo>& start,
                          const Gpu& recorded) {
  Gpu gpu(recorded.driver.memory_info().total, recorded.allocator.config().text,
          recorded.allocator.version());
  Replayer replayer(gpu.allocator, gpu.driver, &gpu.allocator, {.compare = true});
  replayer.restore(start);
  gpu.allocator.check_invariants();
  replayer.feed(events);
  replayer.finish();
  CHECK(!replayer.first_difference());
  return describe(gpu.allocator.segments());
}

struct Setting {
  const char* config;
  Bytes memory;
  RandomProgram::Options options;
  // Whether the test also replays histories that begin in the middle of an operation.
  bool within_operations = true;
  // Whether the start state shows where reserved address space begins. If it does not, a replay
  // that begins from it is not exact, so the test makes no replay.
  bool replays = true;
};

}  // namespace

TEST(start_state_is_exact_wherever_a_history_is_cut) {
  for (const Setting& setting : {Setting{"", 1_GiB, {}},
                                 {"", 256_MiB, {.uses_pools = false}},
                                 {"roundup_power2_divisions:4", 1_GiB, {}},
                                 {"max_split_size_mb:32", 1_GiB, {}, false},
                                 {"expandable_segments:True", 1_GiB, {.empties_cache = false}},
                                 {"expandable_segments:True", 256_MiB, {}, true, false}}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Gpu gpu(setting.memory, setting.config, kByAddress);
      RandomProgram program(gpu, seed, setting.options);
      std::map<std::size_t, std::string> states{{0, ""}};  // the state after each operation
      for (int i = 0; i < 150; ++i) {
        message_of<OutOfMemory>([&] { return (program.step(), 0); });
        states[gpu.allocator.history().size()] = describe(gpu.allocator.segments());
      }
      const EventList events(gpu.allocator.history());
      const std::vector<SegmentInfo> segments = gpu.allocator.segments();
      for (std::size_t cut = 0; cut <= events.count(); ++cut) {
        const auto state = states.find(cut);
        const bool is_between = state != states.end();
        const std::vector<SegmentInfo> start =
            reconstruct_start(events.span(cut), segments, gpu.allocator.config());
        if (is_between) CHECK_EQUAL(describe(start), state->second);
        if (!setting.replays || !(is_between || setting.within_operations)) continue;
        CHECK_EQUAL(end_of_replay(events.span(cut), start, gpu), describe(segments));
      }
    }
  }
}

TEST(start_state_is_nothing_for_a_complete_history) {
  Gpu gpu(1_GiB);
  gpu.malloc(5_MiB);
  gpu.free({gpu.malloc(30_MiB)});
  const std::vector<SegmentInfo> segments = gpu.allocator.segments();
  const EventList events(gpu.allocator.history());
  CHECK(starts_from_nothing(events.span(), segments));
  CHECK(start_of(gpu).empty());
  for (const std::size_t cut : {1U, 2U, 3U})
    CHECK(!starts_from_nothing(events.span(cut), segments));
  // If the final segments are unknown, any events count as a complete history.
  CHECK(starts_from_nothing(events.span(1), {}));
}

// --- ends of blocks ----------------------------------------------------------------------------

TEST(start_state_counts_a_tail_without_room_for_another_block_to_the_block) {
  Gpu gpu(1_GiB);
  gpu.free({gpu.malloc(12_MiB)});
  Block* const block = gpu.malloc(11_MiB + 512_KiB);  // the block keeps the segment's last half MiB
  gpu.events();
  gpu.free({block});
  gpu.malloc(3_MiB);
  const std::string start = describe(start_of(gpu));
  CHECK(start.find(" 12M active_allocated for 12058624") != std::string::npos);
}

TEST(start_state_finds_the_end_of_a_block_by_what_follows_it_later) {
  for (const bool is_used : {true, false}) {
    Gpu gpu(1_GiB);
    Block* const first = gpu.malloc(5_MiB);
    Block* const second = gpu.malloc(5_MiB);
    gpu.malloc(4_MiB);
    gpu.free({first});
    Block* const unsplit = gpu.malloc(4_MiB + 512_KiB);
    CHECK_EQUAL(unsplit->size, 5_MiB);
    gpu.free({second});  // leaves free memory behind the block
    const std::string before = describe(gpu.allocator.segments());
    gpu.events();
    if (is_used) gpu.malloc(2_MiB);
    gpu.free({unsplit});
    const std::string start = describe(start_of(gpu));
    CHECK_EQUAL(start == before, is_used);
    if (!is_used) CHECK(start.find(" 4608K active_allocated") != std::string::npos);
  }
}

TEST(start_state_learns_nothing_from_what_follows_a_freed_block) {
  Gpu gpu(1_GiB);
  Block* const block = gpu.malloc(10_MiB - 1_KiB);
  gpu.driver.hold(2);
  gpu.allocator.record_stream(block, 2);
  gpu.free({block});
  gpu.events();
  const std::string before = describe(gpu.allocator.segments());
  gpu.driver.finish(2);
  gpu.malloc(2_MiB);
  gpu.malloc(8_MiB + 512_KiB);
  gpu.malloc(5_MiB);  // begins about half a MiB after the former end of `block`
  CHECK_EQUAL(describe(start_of(gpu)), before);
}

// --- knowledge of segments ---------------------------------------------------------------------

TEST(start_state_knows_the_segments_that_were_given_back_since) {
  Gpu gpu(1_GiB);
  Block* const small = gpu.malloc(600, 3);
  Block* const large = gpu.malloc(30_MiB, 4);
  const std::string before = describe(gpu.allocator.segments());
  gpu.events();
  gpu.free({small, large});
  gpu.allocator.empty_cache();
  CHECK(gpu.allocator.segments().empty());
  CHECK_EQUAL(describe(start_of(gpu)), before);
}

TEST(start_state_tells_small_expandable_segments_from_large_ones) {
  Gpu gpu(1_GiB, kExpandable);
  std::vector<Block*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(gpu.malloc(1_MiB));
  for (int i = 0; i < 3; ++i) blocks.push_back(gpu.malloc(12_MiB));
  const std::string before = describe(gpu.allocator.segments());
  gpu.events();
  for (Block* const block : blocks) gpu.free({block});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.allocator.segments().size(), 0U);
  CHECK_EQUAL(describe(start_of(gpu)), before);
}

TEST(start_state_joins_and_parts_the_mapped_ranges_of_an_expandable_segment) {
  Gpu gpu(1_GiB, kExpandable);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(gpu.malloc(20_MiB));
  const std::string whole = describe(gpu.allocator.segments());
  gpu.events();
  gpu.free({blocks[1]});
  gpu.allocator.empty_cache();
  const std::string parted = describe(gpu.allocator.segments());
  CHECK_EQUAL(describe(start_of(gpu)), whole);
  gpu.events();
  gpu.malloc(20_MiB);
  gpu.malloc(40_MiB);
  CHECK_EQUAL(describe(start_of(gpu)), parted);
}

// --- contradictions ----------------------------------------------------------------------------

TEST(start_state_says_why_it_cannot_be_reconstructed) {
  CHECK_EQUAL(refusal({event(Action::alloc, kA, 512)}, {}),
              "event 0 allocates 0x7f0000000000, of which neither a later event nor the final "
              "segments know");
  CHECK_EQUAL(refusal({event(Action::segment_alloc, kA, 2_MiB)}, {}),
              "event 0 makes the segment 0x7f0000000000, which is missing from the final segments");
  CHECK_EQUAL(refusal({event(Action::segment_map, kA, 2_MiB)}, {}),
              "event 0 maps 0x7f0000000000, which is missing from the final segments");
  CHECK_EQUAL(
      refusal({event(Action::free_requested, kA, 512), event(Action::free_completed, kA, 512)}, {}),
      "the block 0x7f0000000000 lies in no known segment");
  const SegmentInfo used =
      segment(20_MiB, {{kA, 4_MiB, 4_MiB, BlockState::inactive, 0},
                       {kA + 4_MiB, 16_MiB, 16_MiB, BlockState::active_allocated, 0}});
  CHECK_EQUAL(refusal({event(Action::free_completed, kA, 5_MiB)}, {used}),
              "the block 0x7f0000000000 of 5242880 bytes would run into its neighbour");
  CHECK_EQUAL(refusal({event(Action::free_completed, kA, 4_MiB)}, {used}), "");
}

}  // namespace plimsoll
