// Tests that blocks that are live at the same time never overlap in a plan, however often a step is
// repeated.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/planning/packing.h"
#include "plimsoll/planning/planner.h"
#include "support.h"

namespace plimsoll {
namespace {

TimeSpan random_span(Random& random, std::uint32_t end) {
  const auto begin = static_cast<std::uint32_t>(random.below(end));
  return {begin, static_cast<std::uint32_t>(random.between(begin + 1, end))};
}

// Returns the most bytes that are live at once.
Bytes most_live(std::span<const TimedBlock> blocks, std::uint32_t end) {
  Bytes most = 0;
  for (std::uint32_t time = 0; time < end; ++time) {
    const TimeSpan now{time, time + 1};
    Bytes live = 0;
    for (const TimedBlock& block : blocks) live += block.live.meets(now) ? block.size : 0;
    most = std::max(most, live);
  }
  return most;
}

// Cuts a rectangle into random blocks, and leaves out about one block in eight. One side of the
// rectangle is the time span `span`; the other side is `size` bytes.
void cut(Random& random, TimeSpan span, Bytes size, int cuts, std::vector<TimedBlock>& blocks) {
  const bool is_earlier_and_later = random.one_in(2);
  if (cuts == 0 || (is_earlier_and_later ? span.length() < 2 : size < 1024)) {
    if (!random.one_in(8)) blocks.push_back({size, span, {}, {}});
    return;
  }
  if (is_earlier_and_later) {
    const auto at = static_cast<std::uint32_t>(random.between(span.begin + 1, span.end - 1));
    cut(random, {span.begin, at}, size, cuts - 1, blocks);
    cut(random, {at, span.end}, size, cuts - 1, blocks);
    return;
  }
  const Bytes part = random.between(1, size / 512 - 1) * 512;
  cut(random, span, part, cuts - 1, blocks);
  cut(random, span, size - part, cuts - 1, blocks);
}

// A program of requests in steps. It frees each block right before a later request, or never.
class Program {
 public:
  void request(Bytes size, std::uint32_t life, bool is_shared = false) {
    const auto number = static_cast<std::uint32_t>(requests_.size());
    requests_.push_back({size, life == 0 ? 0 : number + life, is_shared});
  }
  [[nodiscard]] std::vector<TimedRequest> requests() const {
    std::vector<TimedRequest> all = requests_;
    const auto count = static_cast<std::uint32_t>(all.size());
    for (TimedRequest& each : all) each.end = each.end == 0 ? count : std::min(each.end, count);
    return all;
  }

 private:
  std::vector<TimedRequest> requests_;
};

// Places each request as the plan's sections say, and checks that it overlaps no live block.
void check_plan(const StreamPlan& plan, const std::vector<TimedRequest>& requests) {
  struct Live {
    Bytes begin;
    Bytes end;
    std::uint32_t until;
  };
  std::vector<Live> live;
  std::uint32_t number = 0;
  std::size_t first = 0;
  for (const PlanSection& section : plan.sections) {
    for (std::uint32_t i = 0; i < section.length * section.times; ++i, ++number) {
      const PlanSlot& slot = plan.slots[first + i % section.length];
      const TimedRequest& request = requests[number];
      CHECK(slot.serves(request.size));
      CHECK_EQUAL(slot.is_elsewhere(), request.is_shared);
      if (request.is_shared) continue;
      std::erase_if(live, [&](const Live& each) { return each.until <= number; });
      const Bytes end = slot.offset + request.size;
      CHECK(std::ranges::none_of(
          live, [&](const Live& each) { return slot.offset < each.end && each.begin < end; }));
      live.push_back({slot.offset, end, request.end});
    }
    first += section.length;
  }
  CHECK_EQUAL(number, requests.size());
}

std::vector<TimedRequest> random_program(Random& random, bool varies) {
  Program program;
  for (std::uint64_t i = random.between(1, 20); i > 0; --i) {
    program.request(random.between(3, 40) * kMiB,
                    random.one_in(3) ? 0 : 1 + static_cast<std::uint32_t>(random.below(30)));
  }
  struct OfStep {
    Bytes size;
    std::uint32_t life;
    bool is_shared;
  };
  std::vector<OfStep> step(random.between(4, 40));
  for (OfStep& each : step) {
    each = {random.between(8, 40) * kMiB, static_cast<std::uint32_t>(1 + random.below(step.size())),
            random.one_in(20)};
  }
  for (std::uint64_t times = random.between(2, 6); times > 0; --times) {
    for (const OfStep& each : step) {
      const bool other = varies && !each.is_shared;
      program.request(other ? each.size - random.below(4) * kMiB : each.size, each.life,
                      each.is_shared);
    }
  }
  for (std::uint64_t i = random.below(10); i > 0; --i) {
    program.request(random.between(3, 40) * kMiB, 1 + static_cast<std::uint32_t>(random.below(4)));
  }
  return program.requests();
}

}  // namespace

TEST(blocks_that_are_live_at_once_do_not_overlap) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t end = 1 + static_cast<std::uint32_t>(random.below(60));
    std::vector<TimedBlock> blocks(random.between(1, 80));
    for (TimedBlock& block : blocks) {
      block = {random.between(1, 50) * 512, random_span(random, end), {}, {}};
      if (random.one_in(4)) block.carried = random_span(random, end);
      if (random.one_in(4)) block.entered = random_span(random, end);
    }
    const Packing packing = pack(blocks);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CHECK(packing.offsets[i] + blocks[i].size <= packing.height);
      for (std::size_t j = 0; j < i; ++j) {
        const bool is_apart = packing.offsets[i] + blocks[i].size <= packing.offsets[j] ||
                              packing.offsets[j] + blocks[j].size <= packing.offsets[i];
        CHECK(is_apart || !blocks[i].meets(blocks[j]));
      }
    }
    CHECK(packing.height >= most_live(blocks, end));
  }
}

TEST(a_stack_of_blocks_takes_no_more_than_what_is_live) {
  std::vector<TimedBlock> blocks;
  for (std::uint32_t i = 0; i < 50; ++i)
    blocks.push_back({(1 + i % 7) * 512, {i, 100 - i}, {}, {}});
  CHECK_EQUAL(pack(blocks).height, most_live(blocks, 100));
}

TEST(blocks_that_fit_together_without_a_gap_take_hardly_more_than_what_is_live) {
  Random random(3);
  constexpr int kRounds = 100;
  double sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<TimedBlock> blocks{{512, {0, 1}, {}, {}}};
    cut(random, {1, 200}, Bytes{1000} * 512, 6, blocks);
    const auto live = static_cast<double>(most_live(blocks, 200));
    sum += static_cast<double>(pack(blocks).height) / live;
  }
  CHECK(sum / kRounds < 1.006);  // without the stacked orders it is about 1.014
}

TEST(of_equally_low_areas_that_one_is_taken_whose_top_is_in_use_for_the_shortest_time) {
  const TimedBlock stays{32 * 512, {0, 100}, {}, {}};
  const TimedBlock passes{96 * 512, {10, 11}, {}, {}};
  const Packing packing = pack(std::vector{stays, passes});
  CHECK_EQUAL(packing.height, Bytes{128 * 512});
  CHECK_EQUAL(packing.offsets.front(), Bytes{0});
}

TEST(what_the_first_step_finds_and_what_later_steps_find_may_share_a_place) {
  const TimedBlock found_by_first{512, {0, 5}, {}, {5, 8}};
  const TimedBlock left_by_each{512, {12, 15}, {5, 8}, {}};
  CHECK(!found_by_first.meets(left_by_each));
  CHECK_EQUAL(pack(std::vector{found_by_first, left_by_each}).height, Bytes{512});
}

TEST(no_plan_is_made_of_nothing) {
  CHECK(plan_stream({}).slots.empty());
  CHECK_EQUAL(pack({}).height, Bytes{0});
}

TEST(a_plan_holds_for_every_step) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const std::vector<TimedRequest> requests = random_program(random, round % 2 == 1);
    const StreamPlan plan = plan_stream(requests);
    ProgramPlan{{plan}}.check();
    check_plan(plan, requests);
  }
}

TEST(steps_that_repeat_are_planned_once) {
  Program program;
  for (int i = 0; i < 10; ++i) program.request(4_MiB + Bytes(i) * kMiB, 0);
  const auto step = [&] {
    for (std::uint32_t i = 0; i < 40; ++i) program.request((3 + i % 11) * kMiB, 1 + i % 9);
  };
  for (int i = 0; i < 50; ++i) step();
  const StreamPlan plan = plan_stream(program.requests());
  CHECK(plan.slots.size() <= 10 + 3 * 40);
  CHECK_EQUAL(plan.step_length(), 40U);
  check_plan(plan, program.requests());
}

TEST(steps_whose_first_block_lives_until_the_next_one_is_there_are_planned_once) {
  Program program;
  for (int step = 0; step < 40; ++step) {
    program.request(36_MiB, 41);  // `x = make()` frees the old block after it makes the new one
    for (std::uint32_t i = 1; i < 40; ++i) program.request((3 + i % 11) * kMiB, 1 + i % 9);
  }
  const StreamPlan plan = plan_stream(program.requests());
  CHECK(plan.slots.size() <= 5 * 40);
  check_plan(plan, program.requests());
}

TEST(an_area_is_hardly_higher_because_steps_are_planned_once) {
  Random random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::pair<Bytes, std::uint32_t>> step(random.between(20, 40));
    for (auto& [size, life] : step) {
      const auto length = static_cast<std::uint32_t>(step.size());
      size = random.between(3, 60) * kMiB;
      // A quarter of the blocks live until the same request of the next step has been made.
      life = random.one_in(4) ? length + 1 : static_cast<std::uint32_t>(random.between(1, 12));
    }
    Program program;
    for (int time = 0; time < 12; ++time) {
      for (const auto& [size, life] : step) program.request(size, life);
    }
    const std::vector<TimedRequest>& requests = program.requests();
    std::vector<TimedBlock> blocks(requests.size());
    for (std::uint32_t i = 0; i < requests.size(); ++i) {
      blocks[i] = {requests[i].size, {i, requests[i].end}};
    }
    const Bytes height = pack(blocks).height;
    const StreamPlan plan = plan_stream(requests);
    CHECK(plan.height() <= height + std::max(height / 150, 9_MiB));
    check_plan(plan, requests);
  }
}

TEST(steps_of_one_length_are_planned_as_one_with_the_largest_sizes) {
  Program program;
  for (std::uint32_t step = 0; step < 30; ++step) {
    const Bytes more = step % 3 * kMiB;
    for (std::uint32_t i = 0; i < 40; ++i) {
      program.request((8 + i % 11) * kMiB + more, i < 20 ? 40 - 2 * i : 1);
    }
  }
  const StreamPlan plan = plan_stream(program.requests());
  CHECK(plan.slots.size() <= 3 * 40);
  CHECK(std::ranges::any_of(
      plan.slots, [](const PlanSlot& slot) { return slot.least + 2 * kMiB == slot.size; }));
  check_plan(plan, program.requests());
}

TEST(a_block_that_another_stream_uses_has_no_place) {
  Program program;
  for (std::uint32_t i = 0; i < 20; ++i) program.request(8_MiB, 2, i % 2 == 0);
  const StreamPlan plan = plan_stream(program.requests());
  check_plan(plan, program.requests());
  CHECK_EQUAL(plan.height(), 8_MiB);
}

TEST(what_is_no_plan_is_refused) {
  const auto error_of = [](StreamPlan stream) {
    return message_of<std::invalid_argument>([&] {
      ProgramPlan{{std::move(stream)}}.check();
      return 0;
    });
  };
  CHECK_EQUAL(error_of({{{1, 1}}, {{2_MiB, 2_MiB, 0}}}), "");
  CHECK_EQUAL(error_of({{{2, 1}}, {{2_MiB, 2_MiB, 0}}}),
              "the sections of a stream do not make up its slots");
  CHECK_EQUAL(error_of({{{1, 0}}, {{2_MiB, 2_MiB, 0}}}), "a section of a plan is empty");
  CHECK_EQUAL(error_of({{{1, 1}}, {{1_MiB, 1_MiB, 0}}}), "a slot is as large as no large request");
  CHECK_EQUAL(error_of({{{1, 1}}, {{2_MiB, 3_MiB, 0}}}),
              "a slot's smallest size is above its largest");
  CHECK_EQUAL(error_of({{{1, 1}}, {{2_MiB, 2_MiB, 7}}}),
              "the offset of a slot is no multiple of 512 bytes");
  CHECK_EQUAL(error_of({{{1, 1}}, {{2_MiB + 1, 2_MiB, 0}}}),
              "the size of a slot is no multiple of 512 bytes");
  CHECK_EQUAL(error_of({{{1, 1}}, {{2_MiB, 2_MiB, Bytes{1} << 50}}}),
              "a slot's offset is beyond any GPU's memory");
}

}  // namespace plimsoll
