// Tests that a program needs no more memory under a limit than without one. Each program first runs
// without a limit, and its peak of reserved memory is noted. Then it runs under limits of at least
// this peak. It must not run out of memory, and must reach the same peak.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "check.h"
#include "elastic_gpu.h"
#include "support.h"

namespace plimsoll {
namespace {

// A request if `size` is not 0, otherwise the free of an earlier request's block.
struct Operation {
  Bytes size = 0;
  StreamId stream = 0;             // for a request
  double launched_ns = 0;          // for a request: the work queued on its stream afterwards, in ns
  std::size_t freed = 0;           // for a free: the request's number
  bool is_used_elsewhere = false;  // for a free: another stream still uses the block
};
using Program = std::vector<Operation>;

// Makes steps that are similar but not equal, as in a program whose inputs have many lengths. Some
// blocks outlive their step.
Program random_program(Random& random, std::uint64_t streams) {
  std::vector<Bytes> sizes;
  for (std::uint64_t i = random.between(5, 40); i > 0; --i) {
    const Bytes most = random.one_in(3) ? 512_KiB : random.one_in(4) ? 300_MiB : 40_MiB;
    sizes.push_back(random.between(1, most));
  }
  Program program;
  std::vector<std::size_t> live;
  const auto free_one = [&] {
    const auto which = static_cast<std::ptrdiff_t>(random.below(live.size()));
    program.push_back({.freed = live[static_cast<std::size_t>(which)],
                       .is_used_elsewhere = streams > 1 && random.one_in(4)});
    live.erase(live.begin() + which);
  };
  for (int step = 0; step < 4; ++step) {
    const std::uint64_t percent = random.between(80, 120);
    for (const Bytes size : sizes) {
      live.push_back(program.size());
      program.push_back({.size = std::max<Bytes>(1, size * percent / 100),
                         .stream = random.below(streams),
                         .launched_ns = streams > 1 ? 1e3 * static_cast<double>(size) : 0});
      if (live.size() > 3 && random.one_in(3)) free_one();
    }
    while (live.size() > sizes.size() / 4) free_one();
  }
  return program;
}

// Runs the program and returns its peak of reserved memory; nothing if it ran out of memory.
std::optional<Bytes> run(const Program& program, std::optional<Bytes> limit) {
  ElasticGpu gpu(64_GiB);
  gpu.allocator.set_limit(limit);
  std::vector<Block*> blocks(program.size());
  try {
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Operation& each = program[i];
      if (each.size > 0) {
        blocks[i] = gpu.malloc(each.size, each.stream);
        if (each.launched_ns > 0) gpu.driver.launch(each.stream, each.launched_ns);
        continue;
      }
      if (each.is_used_elsewhere) gpu.allocator.record_stream(blocks[each.freed], 7);
      if (each.is_used_elsewhere) gpu.driver.launch(7, 1e6);
      gpu.free({blocks[each.freed]});
    }
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
  gpu.allocator.check_invariants();
  return static_cast<Bytes>(gpu.allocator.statistics().reserved_bytes.all.peak);
}

// Returns limits of `needed` bytes and more: first in steps of a granule, then in steps of 1 %.
std::vector<Bytes> limits_around(Bytes needed) {
  std::vector<Bytes> limits;
  for (Bytes more = 0; more <= 8; ++more) limits.push_back(needed + more * kGranule);
  for (Bytes percent = 1; percent <= 16; ++percent)
    limits.push_back(needed + needed * percent / 100);
  return limits;
}

}  // namespace

TEST(elastic_needs_under_a_limit_what_it_takes_without_one) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const Program program = random_program(random, 1);
    const Bytes needed = run(program, std::nullopt).value();
    for (const Bytes limit : limits_around(needed)) CHECK(run(program, limit) == needed);
    // Less memory does not suffice: with one stream there is no pending free to wait for.
    for (Bytes less = 1; less <= 8; ++less) {
      CHECK(!run(program, needed - less * kGranule));
    }
  }
}

TEST(elastic_needs_no_more_under_a_limit_where_streams_take_turns) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const Program program = random_program(random, 3);
    const Bytes needed = run(program, std::nullopt).value();
    for (const Bytes limit : limits_around(needed)) CHECK(run(program, limit) == needed);
  }
}

}  // namespace plimsoll
