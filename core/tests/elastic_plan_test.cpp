// Tests the elastic allocator with a plan. A plan that fits the program decides at which addresses
// requests lie. With a plan that does not fit, the program still gets correct memory.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "check.h"
#include "elastic_gpu.h"
#include "plimsoll/planning/planner.h"
#include "support.h"

namespace plimsoll {
namespace {

struct Step {
  Bytes size = 0;          // the size of a request; 0 means a free
  std::size_t number = 0;  // for a free: the number of the request whose block is freed
  StreamId stream = 0;
};
using Program = std::vector<Step>;

// Returns the steps of a training loop, with small requests among the large ones.
Program training(Random& random, int steps) {
  Program program;
  std::size_t requests = 0;
  const auto request = [&](Bytes size) {
    program.push_back({size, 0});
    return requests++;
  };
  for (int i = 0; i < 6; ++i) request(random.between(2, 12) * kMiB);
  std::vector<Bytes> sizes(random.between(8, 24));
  for (Bytes& size : sizes) size = random.between(3, 40) * 512 * kKiB + random.below(64) * 512;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::size_t> live;
    for (const Bytes size : sizes) {
      live.push_back(request(size));
      program.push_back({0, request(4_KiB)});
    }
    for (std::size_t i = live.size(); i-- > 0;) program.push_back({0, live[i]});
  }
  return program;
}

// Returns the steps of a training loop whose optimizer creates its state, two blocks for each
// parameter, in the first step that it does not skip.
Program training_with_state(Random random, int steps, int skipped) {
  Program program;
  std::size_t requests = 0;
  const auto request = [&](Bytes size) {
    program.push_back({size, 0});
    return requests++;
  };
  std::vector<Bytes> parameters(20);
  for (Bytes& size : parameters) size = random.between(3, 12) * kMiB;
  for (const Bytes size : parameters) request(size);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::size_t> live;
    for (const Bytes size : parameters) live.push_back(request(size + 2_MiB));  // activations
    const std::size_t activations = live.size();
    for (std::size_t i = parameters.size(); i-- > 0;) {
      live.push_back(request(parameters[i]));  // gradients
      program.push_back({0, live[i]});
    }
    for (const Bytes size : parameters) {
      if (step == skipped) {
        request(size);
        request(size);
      }
    }
    for (std::size_t i = activations; i < live.size(); ++i) program.push_back({0, live[i]});
  }
  return program;
}

ProgramPlan plan_of(const Program& program) {
  std::vector<TimedRequest> requests;
  std::vector<std::optional<std::size_t>> large;
  for (const Step& step : program) {
    if (step.size == 0) {
      if (large[step.number]) {
        requests[*large[step.number]].end = static_cast<std::uint32_t>(requests.size());
      }
      continue;
    }
    const bool is_large = step.size > ProgramPlan::kSmallRequest;
    large.push_back(is_large ? std::optional(requests.size()) : std::nullopt);
    if (is_large) requests.push_back({round_up(step.size, 512), 0, false});
  }
  for (TimedRequest& each : requests) {
    if (each.end == 0) each.end = static_cast<std::uint32_t>(requests.size());
  }
  return {{plan_stream(requests)}};
}

// Returns the program with requests and frees of another stream in between.
Program beside_another_stream(Random& random, const Program& program) {
  Program both;
  std::vector<std::size_t> numbers;  // request i of `program` is request numbers[i] of `both`
  std::vector<std::size_t> others;
  std::size_t requests = 0;
  for (const Step& step : program) {
    if (step.size > 0) numbers.push_back(requests++);
    both.push_back(step.size > 0 ? step : Step{0, numbers[step.number], 0});
    if (random.one_in(3)) {
      both.push_back({random.between(3, 16) * 512 * kKiB, 0, 1});
      others.push_back(requests++);
    } else if (!others.empty() && random.one_in(3)) {
      const auto which = others.begin() + static_cast<std::ptrdiff_t>(random.below(others.size()));
      both.push_back({0, *which, 1});
      others.erase(which);
    }
  }
  return both;
}

// Runs a program and checks that no new block overlaps a live one. After each request, queues
// `work` nanoseconds of work on the stream of the request. Returns the addresses of the large
// blocks of stream 0, relative to the address of the program's first block.
std::vector<Bytes> run(ElasticGpu& gpu, const Program& program, double work = 0) {
  std::vector<Block*> blocks;
  std::vector<Bytes> offsets;
  Address first = 0;
  std::map<Address, Address> live;  // each block's begin and end
  for (const Step& step : program) {
    if (step.size == 0) {
      Block* const freed = std::exchange(blocks[step.number], nullptr);
      live.erase(freed->address);
      gpu.allocator.free(freed);
      continue;
    }
    Block* const block = gpu.malloc(step.size, step.stream);
    if (work > 0) gpu.driver.launch(step.stream, work);
    CHECK(block->size >= step.size);
    const Address end = block->address + block->size;
    const auto after = live.lower_bound(block->address);
    CHECK(after == live.end() || end <= after->first);
    CHECK(after == live.begin() || std::prev(after)->second <= block->address);
    live.emplace(block->address, end);
    blocks.push_back(block);
    if (first == 0) first = block->address;
    const bool is_planned = step.stream == 0 && step.size > ProgramPlan::kSmallRequest;
    if (is_planned) offsets.push_back(block->address - first);
  }
  gpu.allocator.check_invariants();
  for (Block* const block : blocks) {
    if (block != nullptr) gpu.allocator.free(block);
  }
  gpu.allocator.empty_cache();
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.reserved(), Bytes{0});
  return offsets;
}

void give(ElasticGpu& gpu, ProgramPlan plan) {
  plan.check();
  gpu.allocator.set_plan(std::make_shared<const ProgramPlan>(std::move(plan)));
}

Bytes peak_reserved(const ElasticGpu& gpu) {
  return static_cast<Bytes>(gpu.allocator.statistics().reserved_bytes.all.peak);
}

ProgramPlan shifted(ProgramPlan plan, std::size_t by) {
  std::vector<PlanSlot>& slots = plan.streams.front().slots;
  std::ranges::rotate(slots, slots.begin() + static_cast<std::ptrdiff_t>(by % slots.size()));
  return plan;
}

ProgramPlan truncated(ProgramPlan plan, std::size_t to) {
  StreamPlan& stream = plan.streams.front();
  stream.slots.resize(std::max<std::size_t>(to % stream.slots.size(), 1));
  stream.sections = {{static_cast<std::uint32_t>(stream.slots.size()), 1}};
  return plan;
}

// Returns the plan with a slot for each request, as if no step repeated.
ProgramPlan unfolded(const ProgramPlan& plan) {
  StreamPlan stream;
  stream.outside = plan.streams.front().outside;
  auto begin = plan.streams.front().slots.begin();
  for (const PlanSection& section : plan.streams.front().sections) {
    const auto end = begin + section.length;
    for (std::uint32_t i = 0; i < section.times; ++i) {
      stream.slots.insert(stream.slots.end(), begin, end);
    }
    begin = end;
  }
  stream.sections = {{static_cast<std::uint32_t>(stream.slots.size()), 1}};
  return {{stream}};
}

// Adds `count` slots of different sizes, all at the same offset.
void add_other_slots(StreamPlan& stream, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const Bytes size = 2_MiB + i * 512;
    stream.slots.push_back({size, size, 2_GiB});
  }
}

// Returns the plan with random places, which may overlap. About one slot in ten gets no place in
// the planned area.
ProgramPlan scrambled(Random& random, ProgramPlan plan) {
  for (PlanSlot& slot : plan.streams.front().slots) {
    slot.offset = random.one_in(10) ? PlanSlot::kElsewhere : random.below(20000) * 512;
  }
  return plan;
}

ProgramPlan of_nothing_like_it(Random& random) {
  StreamPlan stream;
  for (std::uint64_t i = random.between(1, 60); i > 0; --i) {
    const Bytes size = random.between(3, 40) * 512 * kKiB;
    stream.slots.push_back({size, random.one_in(2) ? size : size - 512, random.below(40000) * 512});
  }
  stream.sections = {{static_cast<std::uint32_t>(stream.slots.size()),
                      static_cast<std::uint32_t>(random.between(1, 4))}};
  return {{stream}};
}

}  // namespace

TEST(a_program_that_follows_its_plan_takes_what_the_plan_says) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    const Program program = training(random, 6);
    const ProgramPlan plan = plan_of(program);
    const Bytes height = round_up(plan.streams.front().height(), kGranule);
    ElasticGpu gpu(4_GiB);
    give(gpu, plan);
    run(gpu, program);
    const PlanUse use = gpu.allocator.plan_use().front();
    CHECK_EQUAL(use.placed_bytes, use.bytes);
    CHECK(peak_reserved(gpu) <= height + kGranule);  // one granule more for small requests
  }
}

TEST(a_plan_serves_more_steps_than_it_was_made_of) {
  Random random(2);
  Program few = training(random, 3);
  Random again(2);
  const Program many = training(again, 40);
  ElasticGpu gpu(4_GiB);
  give(gpu, plan_of(few));
  run(gpu, many);
  const PlanUse use = gpu.allocator.plan_use().front();
  CHECK_EQUAL(use.placed_bytes, use.bytes);
}

TEST(a_plan_without_repeated_steps_serves_a_longer_run_from_its_last_slots) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random few(seed);
    const ProgramPlan plan = unfolded(plan_of(training(few, 3)));
    Random many(seed);
    const Program program = training(many, 40);
    ElasticGpu free(4_GiB);
    run(free, program);
    ElasticGpu gpu(4_GiB);
    give(gpu, plan);
    run(gpu, program);
    const PlanUse use = gpu.allocator.plan_use().front();
    CHECK(!use.dropped.has_value());
    CHECK(use.placed_bytes >= use.bytes / 100 * 95);
    const Bytes height = round_up(plan.streams.front().height(), kGranule);
    CHECK(peak_reserved(gpu) <= std::max(peak_reserved(free), height + kGranule));
  }
}

TEST(nothing_is_mapped_after_the_first_step) {
  Random random(3);
  const Program program = training(random, 2);
  ElasticGpu gpu(4_GiB);
  give(gpu, plan_of(program));
  run(gpu, program);
  Random again(3);
  const Program longer = training(again, 30);
  ElasticGpu other(4_GiB);
  give(other, plan_of(program));
  run(other, longer);
  CHECK_EQUAL(other.driver.calls(Call::create), gpu.driver.calls(Call::create));
  CHECK_EQUAL(other.driver.calls(Call::map), gpu.driver.calls(Call::map));
}

TEST(a_wrong_plan_changes_nothing_that_a_program_gets) {
  Random random(4);
  for (std::size_t round = 0; round < 150; ++round) {
    const Program program = training(random, 8);
    const ProgramPlan right = plan_of(program);
    const std::array plans{shifted(right, 1 + random.below(100)),
                           truncated(right, random.below(99)), scrambled(random, right),
                           of_nothing_like_it(random), plan_of(training(random, 3))};
    ElasticGpu gpu(4_GiB);
    give(gpu, plans[round % plans.size()]);
    const std::vector<Bytes> offsets = run(gpu, program);
    CHECK_EQUAL(offsets.size(), static_cast<std::size_t>(std::ranges::count_if(
                                    program, [](const Step& each) { return each.size > kMiB; })));
  }
}

TEST(a_wrong_plan_makes_no_program_fail_that_runs_without_one) {
  Random random(5);
  for (std::size_t round = 0; round < 40; ++round) {
    const Program program = training(random, 8);
    ElasticGpu free(4_GiB);
    run(free, program);
    ElasticGpu gpu(peak_reserved(free) + 16 * kMiB);
    give(gpu, round % 2 == 0 ? of_nothing_like_it(random) : scrambled(random, plan_of(program)));
    run(gpu, program);
    CHECK_EQUAL(gpu.allocator.statistics().num_ooms, 0);
  }
}

TEST(where_requests_lie_does_not_hang_on_time) {
  Random random(6);
  for (int round = 0; round < 40; ++round) {
    const Program alone = training(random, 5);
    const ProgramPlan plan = plan_of(alone);
    const Program program = round % 2 == 0 ? alone : beside_another_stream(random, alone);
    std::vector<std::vector<Bytes>> found;
    for (const double work : {0.0, 1e4, 1e7}) {
      ElasticGpu gpu(4_GiB);
      give(gpu, plan);
      found.push_back(run(gpu, program, work));
    }
    CHECK(found[0] == found[1]);
    CHECK(found[0] == found[2]);
  }
}

TEST(the_top_of_an_area_serves_another_stream_once_the_stream_is_done_with_it) {
  const auto top = [](double work) {
    ElasticGpu gpu(4_GiB);
    give(gpu, {{{{{1, 1}, {1, 9}}, {{126_MiB, 126_MiB, 0}, {4_MiB, 4_MiB, 126_MiB}}}}});
    Block* const below = gpu.malloc(126_MiB);
    Block* block = gpu.malloc(4_MiB);
    const Address address = block->address;
    if (work > 0) gpu.driver.launch(0, work);
    gpu.allocator.free(block);
    CHECK_EQUAL(gpu.reserved(), 130_MiB);
    Block* const other = gpu.malloc(4_MiB, 1);
    const Bytes reserved = gpu.reserved();
    // If stream 1 took the memory that was mapped at `address`, this call maps new memory there.
    block = gpu.malloc(4_MiB);
    CHECK_EQUAL(block->address, address);
    CHECK_EQUAL(gpu.reserved(), 134_MiB);
    gpu.free({other, block, below});
    gpu.allocator.check_invariants();
    return reserved;
  };
  CHECK_EQUAL(top(0), 130_MiB);
  CHECK_EQUAL(top(1e9), 134_MiB);
}

TEST(the_plan_gets_the_memory_of_its_top_back_from_another_stream) {
  ElasticGpu gpu(4_GiB);
  give(gpu, {{{{{1, 1}, {1, 9}}, {{126_MiB, 126_MiB, 0}, {4_MiB, 4_MiB, 126_MiB}}}}});
  Block* const below = gpu.malloc(126_MiB);
  for (int step = 0; step < 5; ++step) {
    gpu.free({gpu.malloc(4_MiB)});
    gpu.free({gpu.malloc(4_MiB, 1)});
  }
  CHECK_EQUAL(gpu.reserved(), 130_MiB);
  gpu.free({below});
  gpu.allocator.check_invariants();
}

TEST(a_planned_place_is_filled_although_its_stream_took_much_from_others) {
  ElasticGpu gpu(4_GiB);
  gpu.allocator.set_limit(130_MiB);
  give(gpu, {{{{{1, 1}, {1, 9}}, {{126_MiB, 126_MiB, 0}, {4_MiB, 4_MiB, 126_MiB}}}}});
  Block* const below = gpu.malloc(126_MiB);
  // Each step moves two pieces to stream 1 and back.
  for (std::uint64_t step = 0; step < Arena::kTakesAtFirst; ++step) {
    Block* const block = gpu.malloc(4_MiB);
    CHECK_EQUAL(block->address, below->address + 126_MiB);
    gpu.free({block});
    gpu.free({gpu.malloc(4_MiB, 1)});
  }
  gpu.free({below});
  gpu.allocator.check_invariants();
}

TEST(a_plan_that_a_program_does_not_follow_is_dropped) {
  ElasticGpu gpu(4_GiB);
  give(gpu, {{{{{1, 1}}, {{64_MiB, 64_MiB, 0}}}}});
  Program program;
  for (std::size_t i = 0; i < 300; ++i) {
    program.push_back({4_MiB, 0});
    program.push_back({0, i});
  }
  run(gpu, program);
  const PlanUse use = gpu.allocator.plan_use().front();
  CHECK(use.dropped.has_value());
  CHECK_EQUAL(use.dropped->request, 16U);  // 16 requests take 64 MiB, the size of the planned area
  CHECK_EQUAL(use.dropped->placed_bytes, Bytes{0});
  CHECK_EQUAL(use.requests, 16U);  // later requests are not counted
}

TEST(the_memory_of_a_plan_that_was_dropped_goes_back) {
  ElasticGpu gpu(4_GiB);
  StreamPlan stream;
  for (Bytes i = 0; i < 10; ++i) stream.slots.push_back({64_MiB, 64_MiB, i * 64_MiB});
  stream.sections = {{10, 1}};
  give(gpu, {{stream}});
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(gpu.malloc(64_MiB));
  for (Block* const block : blocks) gpu.allocator.free(block);
  CHECK(gpu.reserved() >= 640_MiB);
  for (int i = 0; i < 600; ++i) gpu.free({gpu.malloc(4_MiB)});  // not in the plan
  CHECK(gpu.allocator.plan_use().front().dropped.has_value());
  gpu.free({gpu.malloc(5_MiB)});
  CHECK(gpu.reserved() <= 16_MiB);
  gpu.allocator.check_invariants();
}

TEST(requests_that_no_plan_has_share_the_memory_of_the_area) {
  StreamPlan stream;
  for (Bytes i = 0; i < 10; ++i) stream.slots.push_back({64_MiB, 64_MiB, i * 64_MiB});
  stream.sections = {{10, 30}};
  ElasticGpu gpu(4_GiB);
  give(gpu, {{stream}});
  Program program;
  std::size_t requests = 0;
  const auto ask = [&](int count, Bytes size) {
    for (int i = 0; i < count; ++i) program.push_back({size, 0});
    for (int i = 0; i < count; ++i) program.push_back({0, requests++});
  };
  for (int step = 0; step < 30; ++step) {
    ask(10, 64_MiB);
    ask(5, 24_MiB);  // not in the plan; the planned area is free at this moment
  }
  run(gpu, program);
  const PlanUse use = gpu.allocator.plan_use().front();
  CHECK(!use.dropped.has_value());
  CHECK_EQUAL(use.placed_bytes, 30 * 640_MiB);
  CHECK(peak_reserved(gpu) <= 640_MiB + StreamPlan::top_of(640_MiB));
}

TEST(a_request_more_or_less_does_not_lose_the_plan) {
  Random random(7);
  const Program program = training(random, 6);
  ElasticGpu gpu(4_GiB);
  give(gpu, plan_of(program));
  std::size_t requests = 0;
  std::vector<std::size_t> numbers;  // [i]: the number that request i of `program` has in `changed`
  Program changed;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Step& step = program[i];
    if (step.size > 0) numbers.push_back(requests++);
    changed.push_back(step.size > 0 ? step : Step{0, numbers[step.number], 0});
    if (i % (program.size() / 4) == 5) {  // in the middle of a step, a request outside the plan
      changed.push_back({24_MiB + 512, 0});
      changed.push_back({0, requests++});
    }
  }
  run(gpu, changed);
  const PlanUse use = gpu.allocator.plan_use().front();
  CHECK(!use.dropped.has_value());
  CHECK_EQUAL(use.bytes - use.placed_bytes, 4 * (24_MiB + 512));
}

TEST(state_that_comes_some_steps_later_lies_where_the_plan_has_it) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Program planned = training_with_state(Random(seed), 12, 0);
    const ProgramPlan plan = plan_of(planned);
    for (const int skipped : {1, 2, 5}) {
      ElasticGpu gpu(4_GiB);
      give(gpu, plan);
      run(gpu, training_with_state(Random(seed), 12, skipped));
      const PlanUse use = gpu.allocator.plan_use().front();
      CHECK(!use.dropped.has_value());
      CHECK(use.placed_bytes >= use.bytes - use.bytes / 50);
      const Bytes height = plan.streams.front().height();
      CHECK(peak_reserved(gpu) <= height + height / 50);
    }
  }
}

TEST(late_state_lies_where_the_plan_has_it_although_sizes_differ_between_steps) {
  constexpr std::uint32_t kBetween = PlanFollower::kReach + 100;
  const PlanSlot state{10_MiB, 10_MiB, 16_MiB};
  StreamPlan stream;
  for (int i = 0; i < 10; ++i) {
    stream.slots.push_back({6_MiB, 6_MiB, 0});
    stream.slots.push_back({9_MiB, 9_MiB, 64_MiB});
  }
  stream.slots.push_back(state);
  add_other_slots(stream, kBetween);
  stream.slots.push_back({8_MiB, 5_MiB, 0});
  stream.slots.push_back({9_MiB, 9_MiB, 64_MiB});
  stream.sections = {{21, 1}, {kBetween, 1}, {2, 40}};
  Program program;
  std::size_t requests = 0;
  const auto ask = [&](Bytes size) {
    program.push_back({size, 0});
    program.push_back({0, requests++});
  };
  const auto ask_in_steps = [&](int steps, Bytes size) {
    for (int i = 0; i < steps; ++i) {
      ask(size);
      ask(9_MiB);
    }
  };
  ask_in_steps(10, 6_MiB);  // without the state
  for (std::uint32_t i = 0; i < kBetween; ++i) ask(2_MiB + i * 512);
  ask_in_steps(20, 7_MiB);
  const std::size_t late = requests;
  ask(state.size);
  ask_in_steps(20, 5_MiB);
  ElasticGpu gpu(4_GiB);
  give(gpu, {{stream}});
  CHECK_EQUAL(run(gpu, program)[late], state.offset);
}

TEST(a_step_of_two_requests_is_found_again_behind_a_long_part_that_was_skipped) {
  constexpr std::uint32_t kSkipped = PlanFollower::kReach + 100;
  StreamPlan stream;
  add_other_slots(stream, kSkipped);
  stream.slots.push_back({4_MiB, 4_MiB, 0});
  stream.slots.push_back({6_MiB, 6_MiB, 4_MiB});
  stream.sections = {{kSkipped, 1}, {2, 40}};
  ElasticGpu gpu(4_GiB);
  give(gpu, {{stream}});
  Program program;
  for (std::size_t step = 0; step < 40; ++step) {
    program.push_back({4_MiB, 0});
    program.push_back({6_MiB, 0});
    program.push_back({0, 2 * step});
    program.push_back({0, 2 * step + 1});
  }
  run(gpu, program);
  const PlanUse use = gpu.allocator.plan_use().front();
  CHECK_EQUAL(use.bytes - use.placed_bytes, 2 * 10_MiB);  // kShortContext requests
}

TEST(private_pools_are_not_planned) {
  ElasticGpu gpu(4_GiB);
  give(gpu, {{{{{1, 1}}, {{4_MiB, 4_MiB, 0}}}}});
  gpu.allocator.begin_allocate_to_pool({0, 7}, {});
  Block* const in_pool = gpu.malloc(4_MiB);
  gpu.allocator.end_allocate_to_pool({0, 7});
  CHECK(gpu.allocator.plan_use().empty());
  Block* const block = gpu.malloc(4_MiB);
  CHECK_EQUAL(gpu.allocator.plan_use().front().placed_bytes, 4_MiB);
  gpu.free({in_pool, block});
  gpu.allocator.check_invariants();
}

TEST(a_plan_comes_before_the_first_request) {
  ElasticGpu gpu(4_GiB);
  Block* const block = gpu.malloc(4_MiB);
  CHECK_THROWS(gpu.allocator.set_plan(std::make_shared<const ProgramPlan>()), std::logic_error);
  gpu.free({block});
}

}  // namespace plimsoll
