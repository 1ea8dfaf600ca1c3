// Tests the shadow: given a program's events, it must reach the state in which PyTorch's allocator
// would be.

#include "plimsoll/replay/shadow.h"

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr std::size_t kSmallBatch = 64;

struct ShadowOf final : Observer {
  explicit ShadowOf(Bytes memory, std::string_view config = "")
      : shadow(memory, AllocatorConfig::parse(config, {}), {}, 0, kSmallBatch) {}
  void observe(const TraceEvent& event) override { shadow.add(event); }

  Shadow shadow;
};

TraceEvent event(Action action, Address address, Bytes size, StreamId stream = 0) {
  return {action, address, size, stream, {}, 0, 0};
}

Bytes peak_reserved(const Gpu& gpu) {
  return static_cast<Bytes>(gpu.allocator.statistics().reserved_bytes.all.peak);
}

}  // namespace

TEST(a_shadow_of_pytorchs_own_rules_reserves_the_same) {
  for (const char* const config :
       {"", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Gpu gpu(8_GiB, config);
      ShadowOf shadow(8_GiB, config);
      gpu.allocator.set_observer(&shadow);
      RandomProgram program(gpu, seed, {.empties_cache = false});
      for (int i = 0; i < 3000; ++i) program.step();
      const ShadowResult result = shadow.shadow.result();
      CHECK_EQUAL(result.peak_reserved, peak_reserved(gpu));
      CHECK_EQUAL(result.num_ooms, 0);
      CHECK_EQUAL(result.stopped, "");
      CHECK(result.events > 1000);
      gpu.allocator.set_observer(nullptr);
    }
  }
}

TEST(a_shadow_retries_and_fails_where_pytorch_does) {
  Gpu gpu(256_MiB);
  ShadowOf shadow(256_MiB);
  gpu.allocator.set_observer(&shadow);
  RandomProgram program(gpu, 3,
                        {.uses_streams = false, .uses_pools = false, .empties_cache = false});
  for (int i = 0; i < 3000; ++i) {
    message_of<OutOfMemory>([&] { return (program.step(), 0); });
  }
  const ShadowResult result = shadow.shadow.result();
  const Statistics& statistics = gpu.allocator.statistics();
  CHECK(statistics.num_ooms > 0);
  CHECK_EQUAL(result.num_ooms, statistics.num_ooms);
  CHECK_EQUAL(result.num_alloc_retries, statistics.num_alloc_retries);
  CHECK_EQUAL(result.peak_reserved, peak_reserved(gpu));
  CHECK_EQUAL(result.stopped, "");
  CHECK(result.first_failure.has_value());
}

TEST(a_shadow_empties_the_cache_when_the_program_does) {
  Gpu gpu(8_GiB);
  ShadowOf shadow(8_GiB);
  gpu.allocator.set_observer(&shadow);
  gpu.free({gpu.malloc(100_MiB)});
  gpu.allocator.empty_cache();
  shadow.shadow.apply([](NativeAllocator& allocator) { allocator.empty_cache(); });
  gpu.malloc(200_MiB);
  CHECK_EQUAL(peak_reserved(gpu), Bytes{200_MiB});
  CHECK_EQUAL(shadow.shadow.result().peak_reserved, Bytes{200_MiB});
}

TEST(what_a_shadow_cannot_follow_stops_it_and_nobody_else) {
  ShadowOf shadow(1_GiB);
  shadow.observe(event(Action::alloc, 0x1000, 3_MiB));
  shadow.observe(event(Action::alloc, 0x1000, 30_MiB));
  for (int i = 0; i < 1000; ++i) {
    shadow.observe(event(Action::alloc, 0x10000u + static_cast<Address>(i) * 512, 512));
  }
  const ShadowResult result = shadow.shadow.result();
  CHECK(result.stopped.find("allocated already") != std::string::npos);
  CHECK_EQUAL(result.peak_reserved, Bytes{20_MiB});
  CHECK_EQUAL(result.events, std::uint64_t{1});
  shadow.shadow.apply([](NativeAllocator&) { throw std::runtime_error("never called"); });
  CHECK_EQUAL(shadow.shadow.result().stopped, result.stopped);
}

TEST(a_shadow_takes_a_program_as_it_comes) {
  ShadowOf shadow(1_GiB);
  // Frees a block that was allocated before the first event, and a block of no bytes.
  shadow.observe(event(Action::free_requested, 0x1000, 3_MiB));
  shadow.observe(event(Action::free_completed, 0x1000, 3_MiB));
  shadow.observe(event(Action::alloc, 0x2000, 0));
  shadow.observe(event(Action::free_requested, 0x2000, 0));
  CHECK_EQUAL(shadow.shadow.result().events, std::uint64_t{0});
  // Allocates an address again before its free is reported complete. Then reports a completed free
  // and a segment at an address where no block was allocated.
  shadow.observe(event(Action::alloc, 0x3000, 30_MiB));
  shadow.observe(event(Action::free_requested, 0x3000, 30_MiB));
  shadow.observe(event(Action::alloc, 0x3000, 30_MiB));
  shadow.observe(event(Action::free_completed, 0x9000, 30_MiB));
  shadow.observe(event(Action::segment_alloc, 0x9000, 30_MiB));
  const ShadowResult result = shadow.shadow.result();
  CHECK_EQUAL(result.stopped, "");
  CHECK_EQUAL(result.peak_reserved, Bytes{30_MiB});
}

TEST(a_free_that_waits_keeps_its_memory_in_the_shadow) {
  ShadowOf shadow(1_GiB);
  shadow.observe(event(Action::alloc, 0x1000, 30_MiB));
  shadow.observe(event(Action::free_requested, 0x1000, 30_MiB));
  shadow.observe(event(Action::alloc, 0x2000, 40_MiB));
  shadow.observe(event(Action::free_completed, 0x1000, 30_MiB));
  shadow.observe(event(Action::alloc, 0x1000, 30_MiB));
  CHECK_EQUAL(shadow.shadow.result().peak_reserved, Bytes{70_MiB});
}

TEST(a_shadow_says_what_pytorch_would_have_failed_with) {
  ShadowOf shadow(64_MiB);
  shadow.observe(event(Action::alloc, 0x1000, 40_MiB));
  shadow.observe(event(Action::alloc, 0x2000, 40_MiB));
  shadow.observe(event(Action::alloc, 0x3000, 1_MiB));
  const ShadowResult result = shadow.shadow.result();
  CHECK(result.first_failure && result.first_failure->tried == 40_MiB);
  CHECK_EQUAL(result.num_ooms, 1);
  CHECK_EQUAL(result.peak_reserved, Bytes{40_MiB});  // events after the failure are not replayed
}

TEST(a_shadow_is_fed_by_several_threads) {
  ShadowOf shadow(8_GiB);
  constexpr int kThreads = 4;
  constexpr int kRequests = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const StreamId stream = static_cast<StreamId>(t);
      for (int i = 0; i < kRequests; ++i) {
        const Address address = (static_cast<Address>(t + 1) << 40) + 512;
        shadow.observe(event(Action::alloc, address, 30_MiB, stream));
        shadow.observe(event(Action::free_requested, address, 30_MiB, stream));
        shadow.observe(event(Action::free_completed, address, 30_MiB, stream));
        if (i % 500 == 0) CHECK_EQUAL(shadow.shadow.result().stopped, "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const ShadowResult result = shadow.shadow.result();
  CHECK_EQUAL(result.stopped, "");
  CHECK_EQUAL(result.events, std::uint64_t{3} * kThreads * kRequests);
  CHECK(result.peak_reserved >= kThreads * 30_MiB);
}

}  // namespace plimsoll
