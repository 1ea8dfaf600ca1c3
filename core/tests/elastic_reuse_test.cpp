// Tests how the elastic allocator reuses memory: which cached block serves a request, and that a
// step needs no driver calls after a few repetitions.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "elastic_gpu.h"
#include "support.h"

namespace plimsoll {

// Follows the example in elastic.h and docs/elastic.md.
TEST(elastic_does_what_the_example_of_its_note_says) {
  ElasticGpu gpu(1_GiB);
  Block* const a = gpu.malloc(20_MiB);
  Block* const b = gpu.malloc(20_MiB);
  Block* const c = gpu.malloc(20_MiB);
  const Address base = a->address;
  CHECK_EQUAL(b->address, base + 20_MiB);
  CHECK_EQUAL(c->address, base + 40_MiB);
  gpu.free({a, c});
  const std::uint64_t before = gpu.mapping_calls();
  Block* const d = gpu.malloc(40_MiB);
  CHECK_EQUAL(d->address, base + 40_MiB);
  // `d` takes ten calls of map and one of set_access.
  CHECK_EQUAL(gpu.mapping_calls() - before, std::uint64_t{11});
  const std::uint64_t settled = gpu.mapping_calls();
  gpu.free({d});
  Block* const home = gpu.malloc(20_MiB);
  CHECK_EQUAL(home->address, base);
  gpu.free({home});
  Block* const again = gpu.malloc(40_MiB);
  CHECK_EQUAL(again->address, base + 40_MiB);
  CHECK_EQUAL(gpu.mapping_calls(), settled);
  CHECK_EQUAL(gpu.reserved(), 60_MiB);
  gpu.free({again, b});
  gpu.allocator.check_invariants();
}

TEST(elastic_reuses_a_freed_block_of_the_size_first_once_other_streams_are_done) {
  ElasticGpu gpu(1_GiB);
  Block* const first = gpu.malloc(16, 1);
  const Address at = first->address;
  gpu.allocator.record_stream(first, 2);
  gpu.driver.launch(2, 10e6);
  gpu.free({first});
  const Block* const second = gpu.malloc(16, 1);
  CHECK(second->address != at);
  gpu.host.advance(20e6);
  CHECK_EQUAL(gpu.malloc(16, 1)->address, at);
  gpu.allocator.check_invariants();
}

TEST(elastic_asks_for_other_streams_only_where_a_freed_block_of_the_size_waits) {
  ElasticGpu gpu(1_GiB);
  gpu.free({gpu.malloc(64_MiB), gpu.malloc(1_KiB), gpu.malloc(8_MiB, 1)});
  Block* const block = gpu.malloc(8_MiB);
  gpu.allocator.record_stream(block, 2);
  gpu.driver.launch(2, 10e6);
  gpu.free({block});
  const std::uint64_t before = gpu.event_calls();
  gpu.free({gpu.malloc(4_MiB), gpu.malloc(1_KiB), gpu.malloc(8_MiB, 1)});
  CHECK_EQUAL(gpu.event_calls(), before);
  gpu.malloc(8_MiB);
  CHECK(gpu.event_calls() > before);
  gpu.host.advance(20e6);
  gpu.malloc(8_MiB);
  const std::uint64_t done = gpu.event_calls();
  gpu.malloc(8_MiB);  // no free is pending any more, so there is no event to query
  CHECK_EQUAL(gpu.event_calls(), done);
  gpu.allocator.check_invariants();
}

TEST(elastic_reuses_the_block_that_was_freed_just_now) {
  ElasticGpu gpu(4_GiB);
  std::mt19937_64 random(5);
  std::vector<Block*> live;
  for (std::uint64_t step = 0; step < 4000; ++step) {
    const StreamId stream = step % 2;
    const Bytes size = step % 3 == 0 ? 512 + random() % 1_MiB : 1_MiB + random() % 12_MiB;
    Block* const block = gpu.malloc(size, stream);
    const Address at = block->address;
    gpu.free({block});
    live.push_back(gpu.malloc(size, stream));
    CHECK_EQUAL(live.back()->address, at);
    if (live.size() < 100) continue;
    std::swap(live[random() % live.size()], live.back());
    gpu.free({live.back()});
    live.pop_back();
  }
  gpu.allocator.check_invariants();
}

TEST(elastic_reuses_the_block_that_was_freed_last_before_a_better_fit) {
  ElasticGpu gpu(1_GiB);
  for (const Bytes size : {Bytes{4_KiB}, Bytes{6_MiB}}) {
    Block* const first = gpu.malloc(size);
    gpu.malloc(size);
    Block* const last = gpu.malloc(size);
    gpu.malloc(size);
    const Address at = last->address;
    gpu.free({first, last});  // best fit alone would take `first`, the lower address
    CHECK_EQUAL(gpu.malloc(size)->address, at);
    CHECK(gpu.malloc(size)->address < at);
  }
  gpu.allocator.check_invariants();
}

TEST(elastic_merges_the_block_that_was_freed_last_as_soon_as_anything_else_happens) {
  ElasticGpu gpu(1_GiB);
  Block* const first = gpu.malloc(4_MiB);
  Block* const second = gpu.malloc(4_MiB);
  Block* const third = gpu.malloc(4_MiB);
  const Address at = first->address;
  const std::uint64_t before = gpu.mapping_calls();
  gpu.free({first, third, second});
  CHECK_EQUAL(gpu.malloc(12_MiB)->address, at);
  CHECK_EQUAL(gpu.mapping_calls(), before);
  gpu.allocator.check_invariants();
}

TEST(elastic_gives_the_block_that_was_freed_last_to_the_driver_and_to_other_streams) {
  ElasticGpu gpu(64_MiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.allocator.empty_cache({});
  CHECK_EQUAL(gpu.reserved(), Bytes{0});
  gpu.free({gpu.malloc(40_MiB)});
  gpu.malloc(60_MiB, 1);
  gpu.allocator.check_invariants();
}

// A step that a program repeats, with blocks of a few sizes. The program frees some blocks soon
// after their requests. It frees others in the reverse order, as a backward pass does, and the rest
// only in the next step, like a loss that is kept until the next loss exists.
class RepeatedStep {
 public:
  RepeatedStep(ElasticGpu& gpu, std::uint64_t seed) : gpu_(gpu), random_(seed) {
    const auto count = static_cast<std::size_t>(random_.between(40, 99));
    freed_at_.resize(4 * count);
    for (std::size_t i = 0; i < count; ++i) {
      sizes_.push_back(random_.one_in(12) ? random_.between(150, 499) * kMiB
                                          : random_.pick(kSizes));
      freed_at_[death_of(i, count)].push_back(i);
    }
    old_.resize(count);
    live_.resize(count);
  }

  void run() {
    const std::size_t count = sizes_.size();
    for (std::size_t now = 0; now < 2 * count; ++now) {
      if (now < count) live_[now] = gpu_.malloc(sizes_[now]);
      free_all(old_, freed_at_[2 * count + now]);
      free_all(live_, freed_at_[now]);
      // These blocks are never freed.
      if (is_first_ && now % 7 == 0) gpu_.malloc(kSizes[now % kSizes.size()]);
    }
    is_first_ = false;
    std::swap(old_, live_);
  }

 private:
  static constexpr std::array<Bytes, 9> kSizes{9 * kMiB / 4, 27 * kMiB / 4, 9 * kMiB,
                                               12 * kMiB,    24 * kMiB,     36 * kMiB,
                                               48 * kMiB,    94 * kMiB,     110 * kMiB};

  // Returns the moment at which block `i` is freed. A step has 2 * count moments; later moments are
  // in the next step.
  std::size_t death_of(std::size_t i, std::size_t count) {
    switch (random_.below(10)) {
      case 0:
      case 1:
      case 2:
      case 3: return i + static_cast<std::size_t>(random_.between(1, 4));
      case 4:
      case 5:
      case 6:
      case 7: return std::max(i + 1, 2 * count - 1 - i);
      case 8: return count + static_cast<std::size_t>(random_.below(count));
      default: return 2 * count + static_cast<std::size_t>(random_.below(count));
    }
  }
  void free_all(std::vector<Block*>& from, const std::vector<std::size_t>& which) {
    for (const std::size_t i : which) {
      if (Block* const block = std::exchange(from[i], nullptr)) gpu_.free({block});
    }
  }

  ElasticGpu& gpu_;
  Random random_;
  std::vector<Bytes> sizes_;
  std::vector<std::vector<std::size_t>> freed_at_;
  std::vector<Block*> old_;
  std::vector<Block*> live_;
  bool is_first_ = true;
};

TEST(elastic_steps_whose_blocks_outlive_them_settle) {
  int settled = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    ElasticGpu gpu(40_GiB);
    RepeatedStep step(gpu, seed);
    for (int i = 0; i < 30; ++i) step.run();
    const std::uint64_t before = gpu.mapping_calls();
    for (int i = 0; i < 10; ++i) step.run();
    if (gpu.mapping_calls() == before) ++settled;
    gpu.allocator.check_invariants();
  }
  // If the allocator used only best fit, fewer than half of the 60 programs would settle. The rest
  // would keep moving a few pieces in each step.
  CHECK(settled >= 55);
}

// Three different steps take turns, as in a program whose batches have several sizes. So a step
// never equals the step right before it.
TEST(elastic_different_steps_that_take_turns_settle) {
  int settled = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    ElasticGpu gpu(40_GiB);
    std::vector<RepeatedStep> steps;
    for (std::uint64_t i = 0; i < 3; ++i) steps.emplace_back(gpu, 3 * seed + i);
    const auto run = [&] {
      for (RepeatedStep& step : steps) step.run();
    };
    for (int i = 0; i < 12; ++i) run();
    const std::uint64_t before = gpu.mapping_calls();
    for (int i = 0; i < 4; ++i) run();
    if (gpu.mapping_calls() == before) ++settled;
    gpu.allocator.check_invariants();
  }
  CHECK(settled >= 28);
}

// A classifier whose batches have five sizes in turn and are copied on a side stream. The host is a
// step ahead of the GPU.
class BatchesInTurn {
 public:
  explicit BatchesInTurn(ElasticGpu& gpu) : gpu_(gpu) {}

  void run() {
    for (Bytes batch = 32; batch <= 64; batch += 8) step(batch);
  }

 private:
  static constexpr StreamId kCompute = 0;
  static constexpr StreamId kCopies = 1;
  static constexpr double kWork = 1e5;  // ns of GPU work for each block

  void step(Bytes batch) {
    const Bytes features = batch * 9 * kMiB / 4;
    const Bytes workspace = 2 * features + 144 * 1024;
    Block* const images = malloc(batch * 27 * 4096, kCopies);
    gpu_.allocator.record_stream(images, kCompute);
    Block* before = malloc(features);
    Block* const kept = malloc(features);
    gpu_.free({before});
    before = malloc(features);
    gpu_.free({malloc(workspace)});
    Block* const last = malloc(features);
    gpu_.free({before});
    Block* const weights = malloc(16'000'000);
    Block* gradient = malloc(features);
    Block* next = malloc(features);
    gpu_.free({last, gradient});
    gpu_.free({malloc(workspace)});
    gpu_.free({malloc(workspace + 2 * kMiB)});
    gradient = malloc(features);
    gpu_.free({kept, next});
    next = malloc(features);
    gpu_.free({gradient, next, weights, images});
    wait_for_the_step_before();
  }
  Block* malloc(Bytes size, StreamId stream = kCompute) {
    Block* const block = gpu_.malloc(size, stream);
    gpu_.driver.launch(stream, kWork);
    return block;
  }
  void wait_for_the_step_before() {
    if (end_ != 0) {
      gpu_.driver.synchronize(end_);
      gpu_.driver.destroy(end_);
    }
    gpu_.driver.record(kCompute, end_);
  }

  ElasticGpu& gpu_;
  Event end_ = 0;  // the end of the previous step
};

// A request should get the addresses that it had in the previous step. When these addresses are
// free, the GPU may still be working on the memory there. The allocator cannot unmap this memory
// before the work ends, so it waits. Without this wait, it would map most of a step's memory at
// other addresses.
TEST(elastic_batches_of_five_sizes_settle_while_the_gpu_is_behind) {
  std::uint64_t second_and_third = 0;
  for (Bytes size = 8_MiB; size <= 84_MiB; size += 4_MiB) {
    ElasticGpu gpu(40_GiB);
    gpu.malloc(size);
    BatchesInTurn batches(gpu);
    const auto calls = [&](int turns) {
      const std::uint64_t before = gpu.mapping_calls();
      for (int i = 0; i < turns; ++i) batches.run();
      return gpu.mapping_calls() - before;
    };
    const std::uint64_t first = calls(1);
    second_and_third += calls(2);
    CHECK(calls(9) < first / 5);
    CHECK_EQUAL(calls(5), 0u);
    gpu.allocator.check_invariants();
  }
  CHECK(second_and_third < 20 * 100);  // without the wait, it would be 20 * 210
}

TEST(elastic_small_requests_get_back_what_served_a_large_one_without_the_driver) {
  ElasticGpu gpu(4_MiB);
  gpu.free({gpu.malloc(500'000)});
  gpu.free({gpu.malloc(4_MiB)});
  const std::uint64_t mapped = gpu.mapping_calls();
  const std::uint64_t recorded = gpu.driver.calls(Call::record);
  Block* const small = gpu.malloc(600'000);
  CHECK_EQUAL(gpu.mapping_calls(), mapped);
  CHECK_EQUAL(gpu.driver.calls(Call::record), recorded);
  gpu.allocator.check_invariants();
  gpu.free({small});
}

TEST(elastic_counts_a_segment_for_each_piece_of_the_driver) {
  ElasticGpu gpu(256_MiB);
  const auto segments = [&] { return gpu.allocator.statistics().segment; };
  gpu.free({gpu.malloc(40_MiB)});
  const std::int64_t before = segments().all.current;
  CHECK_EQUAL(before, gpu.allocator.statistics().num_device_alloc);
  gpu.allocator.begin_allocate_to_pool(PoolId{0, 1}, {});
  Block* const small = gpu.malloc(512);
  CHECK_EQUAL(segments().small_pool.current, 1);
  Block* const large = gpu.malloc(40_MiB);
  gpu.allocator.end_allocate_to_pool(PoolId{0, 1});
  CHECK_EQUAL(static_cast<std::uint64_t>(segments().all.current), gpu.driver.handles());
  gpu.free({small, large});
  gpu.allocator.release_pool(PoolId{0, 1});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(segments().all.current, 0);
  CHECK(segments().all.peak >= before);
  gpu.allocator.check_invariants();
}

TEST(streams_stop_taking_the_same_memory_from_each_other) {
  ElasticGpu gpu(4_GiB);
  const auto round = [&gpu](StreamId stream) {
    std::vector<Block*> blocks;
    for (Bytes i = 1; i <= 8; ++i) blocks.push_back(gpu.malloc(i * 8_MiB, stream));
    for (Block* const block : blocks) gpu.allocator.free(block);
    gpu.driver.synchronize();
  };
  round(1);
  round(2);
  CHECK_EQUAL(gpu.reserved(), 36 * 8_MiB);  // the second stream takes what the first one freed
  for (int i = 0; i < 100; ++i) {
    round(1);
    round(2);
  }
  const std::uint64_t calls = gpu.mapping_calls();
  for (int i = 0; i < 100; ++i) {
    round(1);
    round(2);
  }
  CHECK_EQUAL(gpu.mapping_calls(), calls);
  CHECK(gpu.reserved() <= 2 * 36 * 8_MiB);
}

TEST(streams_take_memory_from_each_other_for_ever_where_there_is_no_more) {
  ElasticGpu gpu(320_MiB);
  for (int i = 0; i < 200; ++i) {
    for (const StreamId stream : {StreamId{1}, StreamId{2}}) {
      std::vector<Block*> blocks;
      for (Bytes size = 1; size <= 8; ++size) {
        blocks.push_back(gpu.malloc(size * 8_MiB, stream));
      }
      for (Block* const block : blocks) gpu.allocator.free(block);
    }
  }
  CHECK_EQUAL(gpu.allocator.statistics().num_ooms, 0);
}

}  // namespace plimsoll
