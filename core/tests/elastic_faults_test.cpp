// Runs the same program many times, and makes a different driver call fail each time. The step that
// made the call either fails with an error or succeeds without the call. A failed step leaves the
// state unchanged and succeeds when it is repeated. At the end no memory is left.

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "elastic_gpu.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr Bytes kMemory = 192_MiB;
// The program's live memory never exceeds this, so no request fails for lack of memory.
constexpr Bytes kMostLive = 40_MiB;
constexpr StreamId kStreams = 3;

constexpr std::pair<Call, const char*> kCalls[] = {
    {Call::reserve, "reserve"}, {Call::unreserve, "unreserve"},
    {Call::create, "create"},   {Call::release, "release"},
    {Call::map, "map"},         {Call::set_access, "access"},
    {Call::unmap, "unmap"},     {Call::record, "record"},
    {Call::query, "query"},     {Call::synchronize, "synchronize"}};

struct Step {
  enum class Kind { malloc, free, record_stream, launch, advance, empty_cache, enter, leave };
  Kind kind = Kind::malloc;
  Bytes size = 0;
  StreamId stream = 0;
  std::uint64_t which = 0;
};

std::vector<Step> make_program(std::uint64_t seed) {
  constexpr std::array<Bytes, 3> kMost{8_KiB, 1_MiB, 16_MiB};
  Random random(seed);
  std::vector<Step> steps;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t choice = random.below(100);
    const Bytes most = random.pick(kMost);
    using enum Step::Kind;
    const Step::Kind kind = choice < 45   ? malloc
                            : choice < 72 ? free
                            : choice < 80 ? record_stream
                            : choice < 88 ? launch
                            : choice < 93 ? advance
                            : choice < 95 ? empty_cache
                            : choice < 97 ? enter
                                          : leave;
    steps.push_back({kind, random.between(1, most), random.below(kStreams), random.below(1000)});
  }
  return steps;
}

class Run {
 public:
  void play(const std::vector<Step>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (attempt([&] { take(steps[i]); })) {
        if (i % 50 == 0) check();
        continue;
      }
      check();
      gpu_.driver.clear_faults();
      if (!attempt([&] { take(steps[i]); })) {
        check::fail(__FILE__, __LINE__, "a step fails again without a fault: " + error_);
        return;
      }
      check();
    }
    gpu_.driver.clear_faults();
    end();
  }
  void fail(Call call, std::uint64_t position, Status status) {
    gpu_.driver.inject({call, position, 1, status});
  }
  // Makes all calls of this kind fail until a step of the program has failed.
  void fail_all(Call call, Status status) { gpu_.driver.inject({call, 0, 1'000'000, status}); }
  [[nodiscard]] std::uint64_t calls(Call call) const { return gpu_.driver.calls(call); }
  [[nodiscard]] int failures() const { return failures_; }
  [[nodiscard]] std::uint64_t moves() const { return gpu_.allocator.moves(); }

 private:
  template <typename Body>
  bool attempt(Body body) {
    try {
      body();
      return true;
    } catch (const OutOfMemory& error) {
      error_ = error.what();
    } catch (const DriverError& error) {
      error_ = error.what();
    }
    ++failures_;
    return false;
  }

  void take(const Step& step) {
    ElasticAllocator& allocator = gpu_.allocator;
    switch (step.kind) {
      case Step::Kind::malloc: {
        while (!live_.empty() && live_bytes_ + step.size > kMostLive) free(step.which);
        Block* const block = allocator.malloc(step.size, step.stream);
        live_bytes_ += block->size;
        live_.emplace(block->address, std::pair(block, block->size));
        break;
      }
      case Step::Kind::free:
        if (!live_.empty()) free(step.which);
        break;
      case Step::Kind::record_stream:
        if (!live_.empty()) allocator.record_stream(pick(step.which)->second.first, step.stream);
        break;
      case Step::Kind::launch:
        gpu_.driver.launch(step.stream, static_cast<double>(step.which) * 1e3);
        break;
      case Step::Kind::advance:
        gpu_.host.advance(static_cast<double>(step.which) * 1e3);
        allocator.poll();
        break;
      case Step::Kind::empty_cache: allocator.empty_cache(); break;
      case Step::Kind::enter:
        if (inside_) break;
        inside_ = PoolId{0, step.which + 1};
        allocator.begin_allocate_to_pool(*inside_, Allocator::only_on(step.stream));
        break;
      case Step::Kind::leave: leave(); break;
    }
  }

  std::map<Address, std::pair<Block*, Bytes>>::iterator pick(std::uint64_t which) {
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(which % live_.size()));
  }

  void free(std::uint64_t which) {
    const auto chosen = pick(which);
    gpu_.allocator.free(chosen->second.first);
    live_bytes_ -= chosen->second.second;
    live_.erase(chosen);
  }

  void leave() {
    if (!inside_) return;
    gpu_.allocator.end_allocate_to_pool(*inside_);
    gpu_.allocator.release_pool(*inside_);
    inside_.reset();
  }

  // Checks that the program's blocks are unchanged and disjoint, and that all counters agree.
  void check() {
    gpu_.allocator.check_invariants();
    Address end = 0;
    for (const auto& [address, entry] : live_) {
      const auto& [block, size] = entry;
      CHECK(block->allocated && block->address == address && block->size == size);
      CHECK(address >= end);
      end = address + size;
    }
    const Statistics& statistics = gpu_.allocator.statistics();
    CHECK_EQUAL(statistics.allocation.all.current, static_cast<std::int64_t>(live_.size()));
    CHECK_EQUAL(statistics.allocated_bytes.all.current, static_cast<std::int64_t>(live_bytes_));
  }

  void end() {
    leave();
    while (!live_.empty()) free(0);
    gpu_.host.advance(1e12);
    gpu_.allocator.poll();
    gpu_.allocator.empty_cache();
    check();
    CHECK_EQUAL(gpu_.reserved(), Bytes{0});
    CHECK_EQUAL(gpu_.driver.dedicated_used(), Bytes{0});
    CHECK_EQUAL(gpu_.driver.handles(), std::size_t{0});
    CHECK_EQUAL(gpu_.driver.mappings(), std::size_t{0});
    CHECK_EQUAL(gpu_.driver.events(), std::size_t{0});
  }

  ElasticGpu gpu_{kMemory};
  std::map<Address, std::pair<Block*, Bytes>> live_;
  Bytes live_bytes_ = 0;
  std::optional<PoolId> inside_;
  int failures_ = 0;
  std::string error_;
};

void fail_every_call(std::uint64_t seed, Status status) {
  const std::vector<Step> program = make_program(seed);
  Run clean;
  clean.play(program);
  CHECK_EQUAL(clean.failures(), 0);
  CHECK(clean.moves() > 10);
  int raised = 0;
  for (const auto& [call, name] : kCalls) {
    for (std::uint64_t position = 0; position < clean.calls(call); ++position) {
      Run run;
      run.fail(call, position, status);
      try {
        run.play(program);
      } catch (const std::exception& error) {
        check::fail(__FILE__, __LINE__,
                    std::string(name) + ' ' + std::to_string(position) + ": " + error.what());
      }
      CHECK(run.failures() <= 1);
      raised += run.failures();
    }
  }
  CHECK(raised > 50);
}

// Plays the program once for each driver call of the kind `call`, and makes this call fail. Until a
// step has failed, every `unmap` fails, too. So the allocator cannot undo the failed step at once.
void fail_every_call_and_its_undoing(std::uint64_t seed, Call call) {
  const std::vector<Step> program = make_program(seed);
  Run clean;
  clean.play(program);
  int raised = 0;
  for (std::uint64_t position = 0; position < clean.calls(call); ++position) {
    Run run;
    run.fail(call, position, Status::failed);
    run.fail_all(Call::unmap, Status::failed);
    run.play(program);
    raised += run.failures();
  }
  CHECK(raised > 10);
}

}  // namespace

TEST(elastic_survives_a_driver_that_gives_no_access_and_unmaps_nothing) {
  fail_every_call_and_its_undoing(3, Call::set_access);
}

TEST(elastic_survives_a_driver_that_maps_in_part_and_unmaps_nothing) {
  fail_every_call_and_its_undoing(4, Call::map);
}

TEST(elastic_survives_every_driver_call_that_runs_out_of_memory) {
  fail_every_call(1, Status::out_of_memory);
}

TEST(elastic_survives_every_driver_call_that_fails) { fail_every_call(2, Status::failed); }

}  // namespace plimsoll
