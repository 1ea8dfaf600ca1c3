// Tests private pools, as CUDA graphs and torch.cuda.MemPool use them.

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr PoolId kPool{0, 1};
constexpr PoolId kOther{0, 2};

// While an object of this class lives, requests go to its private pool.
class Inside {
 public:
  Inside(Gpu& gpu, PoolId pool, std::optional<StreamId> stream = {}) : gpu_(gpu), pool_(pool) {
    gpu_.allocator.begin_allocate_to_pool(pool, Allocator::only_on(stream));
  }
  ~Inside() { gpu_.allocator.end_allocate_to_pool(pool_); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Gpu& gpu_;
  PoolId pool_;
};

Block* malloc_in(Gpu& gpu, PoolId pool, Bytes size) {
  const Inside inside(gpu, pool);
  return gpu.malloc(size);
}

std::string refusal(auto body) {
  return message_of<std::invalid_argument>([&] {
    body();
    return 0;
  });
}

}  // namespace

TEST(native_keeps_private_pools_apart) {
  Gpu gpu(1_GiB);
  gpu.free({gpu.malloc(30_MiB)});
  gpu.free({malloc_in(gpu, kOther, 30_MiB)});
  gpu.events();
  gpu.free({malloc_in(gpu, kPool, 30_MiB)});
  CHECK_EQUAL(gpu.events(), "segment_alloc 30M, alloc 30M, free_requested 30M, free_completed 30M");
  const Address in_pool = malloc_in(gpu, kPool, 30_MiB)->address;
  CHECK_EQUAL(gpu.events(), "alloc 30M");
  for (const SegmentInfo& segment : gpu.allocator.segments()) {
    if (segment.address == in_pool) CHECK(segment.pool == kPool);
  }
  CHECK_EQUAL(gpu.allocator.segments().size(), 3U);
}

TEST(native_prefers_the_pool_that_began_last_from_2_10_on) {
  for (const TorchVersion version : {TorchVersion{2, 9}, TorchVersion{2, 10}}) {
    Gpu gpu(1_GiB, "", version);
    const Inside first(gpu, kPool);
    const Inside last(gpu, kOther);
    gpu.malloc(30_MiB);
    CHECK(gpu.allocator.segments().front().pool == (version.minor == 9 ? kPool : kOther));
  }
}

// The expected order is that of PyTorch's binaries, as tests/oracle observed it.
TEST(pools_come_in_the_order_of_pytorchs_hash_table) {
  constexpr PoolId third{0, 3};
  PoolOrder order;
  for (const PoolId pool : {kPool, kOther, third, kPool}) order.insert(pool);
  CHECK((order.ids() == std::vector<PoolId>{kOther, kPool, third}));
  order.erase(kOther);
  CHECK((order.ids() == std::vector<PoolId>{kPool, third}));
  order.insert(kOther);
  CHECK((order.ids() == std::vector<PoolId>{kOther, kPool, third}));
  for (std::uint64_t number = 4; number < 100; ++number) order.insert({0, number});
  CHECK_EQUAL(order.ids().size(), 99U);
  for (std::uint64_t number = 1; number < 100; ++number) order.erase({0, number});
  CHECK(order.ids().empty());
}

TEST(native_takes_growing_memory_of_a_pool_on_oom_in_2_9) {
  for (const TorchVersion version : {TorchVersion{2, 9}, TorchVersion{2, 10}}) {
    Gpu gpu(100_MiB, "expandable_segments:True", version);
    gpu.allocator.use_pool(kPool);
    gpu.allocator.set_pool_option(kPool, PoolOption::use_on_oom, true);
    gpu.free({malloc_in(gpu, kPool, 90_MiB)});
    const bool fails = !message_of<OutOfMemory>([&] { return gpu.malloc(40_MiB); }).empty();
    CHECK_EQUAL(fails, version.minor == 10);
  }
}

TEST(native_sends_only_the_streams_asked_for_to_a_private_pool) {
  Gpu gpu(1_GiB);
  const Inside inside(gpu, kPool, 5);
  gpu.malloc(30_MiB, 5);
  gpu.malloc(40_MiB, 6);
  for (const SegmentInfo& segment : gpu.allocator.segments()) {
    CHECK_EQUAL(segment.pool == kPool, segment.stream == 5);
  }
}

TEST(native_lets_the_innermost_pool_take_a_request) {
  Gpu gpu(1_GiB);
  const Inside outer(gpu, kPool);
  {
    const Inside inner(gpu, kOther);
    gpu.malloc(30_MiB);
  }
  gpu.malloc(30_MiB);
  CHECK_EQUAL(gpu.allocator.segments().size(), 2U);
  CHECK(gpu.allocator.segments()[0].pool != gpu.allocator.segments()[1].pool);
}

TEST(native_empties_a_private_pool_only_after_its_last_use) {
  Gpu gpu(1_GiB);
  gpu.free({malloc_in(gpu, kPool, 30_MiB)});
  gpu.free({malloc_in(gpu, kPool, 30_MiB)});  // a second use
  gpu.events();
  gpu.allocator.empty_cache();
  gpu.allocator.empty_cache(kPool);
  gpu.allocator.release_pool(kPool);
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.events(), "");
  gpu.allocator.release_pool(kPool);
  CHECK_EQUAL(gpu.events(), "");
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.events(), "segment_free 30M");
  CHECK_EQUAL(gpu.driver.dedicated_used(), 0U);
}

TEST(native_empties_one_private_pool_and_leaves_the_others) {
  Gpu gpu(1_GiB);
  gpu.free({malloc_in(gpu, kPool, 30_MiB), malloc_in(gpu, kOther, 40_MiB), gpu.malloc(50_MiB)});
  gpu.allocator.release_pool(kPool);
  gpu.allocator.release_pool(kOther);
  gpu.events();
  gpu.allocator.empty_cache(kPool);
  CHECK_EQUAL(gpu.events(), "segment_free 30M");
}

TEST(native_forgets_a_released_pool_when_its_last_segment_is_gone) {
  Gpu gpu(1_GiB);
  Block* const block = malloc_in(gpu, kPool, 30_MiB);
  gpu.allocator.release_pool(kPool);
  gpu.allocator.empty_cache();  // the block is live, so its pool stays
  CHECK_EQUAL(refusal([&] { gpu.allocator.release_pool(kPool); }),
              "this private pool was released already");
  gpu.free({block});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(refusal([&] { gpu.allocator.release_pool(kPool); }),
              "there is no private pool (0, 1)");
}

TEST(native_revives_a_released_pool_that_is_used_again) {
  Gpu gpu(1_GiB);
  gpu.free({malloc_in(gpu, kPool, 30_MiB)});
  gpu.allocator.release_pool(kPool);
  malloc_in(gpu, kPool, 30_MiB);
  gpu.events();
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.layout(), "[30M used]");
  CHECK_EQUAL(refusal([&] { gpu.allocator.release_pool(kPool); }), "");
}

TEST(native_refuses_a_misuse_of_private_pools) {
  Gpu gpu(1_GiB);
  NativeAllocator& allocator = gpu.allocator;
  CHECK_EQUAL(refusal([&] { allocator.begin_allocate_to_pool({}, {}); }),
              "(0, 0) is the default pool");
  CHECK_EQUAL(refusal([&] { allocator.end_allocate_to_pool(kPool); }),
              "no requests go to this private pool");
  CHECK_EQUAL(refusal([&] { allocator.release_pool(kPool); }), "there is no private pool (0, 1)");
  CHECK_EQUAL(refusal([&] { allocator.set_pool_option(kPool, PoolOption::no_split, true); }),
              "there is no private pool (0, 1)");
  const Inside inside(gpu, kPool);
  CHECK_EQUAL(refusal([&] { allocator.begin_allocate_to_pool(kPool, {}); }),
              "requests go to this private pool already");
}

TEST(native_never_splits_blocks_of_a_pool_without_splitting) {
  Gpu gpu(1_GiB);
  malloc_in(gpu, kPool, 512);
  gpu.allocator.set_pool_option(kPool, PoolOption::no_split, true);
  gpu.free({malloc_in(gpu, kPool, 40_MiB)});
  CHECK_EQUAL(malloc_in(gpu, kPool, 5_MiB)->size, 40_MiB);
  CHECK_EQUAL(malloc_in(gpu, kPool, 5_MiB)->size, 20_MiB);
}

TEST(native_does_not_give_back_its_cache_inside_a_capture) {
  Gpu gpu(60_MiB);
  gpu.free({gpu.malloc(30_MiB)});
  gpu.events();
  gpu.allocator.begin_graph_capture();
  CHECK_THROWS(malloc_in(gpu, kPool, 40_MiB), OutOfMemory);
  CHECK_EQUAL(gpu.events(), "oom 40M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 0);
  gpu.allocator.end_graph_capture();
  CHECK(gpu.malloc(40_MiB) != nullptr);
}

TEST(native_reports_what_is_free_in_private_pools) {
  Gpu gpu(60_MiB);
  gpu.free({malloc_in(gpu, kPool, 30_MiB)});
  try {
    gpu.malloc(40_MiB);
    CHECK(false);
  } catch (const OutOfMemory& error) {
    CHECK_EQUAL(error.report().free_in_private_pools, 30_MiB);
  }
}

TEST(native_counts_private_pools_from_2_13_on) {
  for (const int minor : {12, 13}) {
    Gpu gpu(1_GiB, "", {2, minor});
    malloc_in(gpu, kPool, 30_MiB);
    const auto& counted = gpu.allocator.statistics().reserved_bytes_by_private_pools;
    CHECK_EQUAL(counted.size(), minor == 13 ? 1U : 0U);
    if (!counted.empty()) {
      CHECK_EQUAL(counted.at(kPool).large_pool.current, static_cast<std::int64_t>(30_MiB));
    }
  }
}

// --- pools that help when memory runs short ----------------------------------------------------

namespace {

// Leaves 40 MiB free in a private pool, 30 MiB in the default pool, and 30 MiB on the device.
void fill_both_pools(Gpu& gpu) {
  gpu.free({malloc_in(gpu, kPool, 40_MiB), gpu.malloc(30_MiB)});
  gpu.allocator.set_pool_option(kPool, PoolOption::use_on_oom, true);
  gpu.events();
}

}  // namespace

TEST(native_takes_from_oom_pools_first_from_2_11_on) {
  Gpu gpu(100_MiB, "", {2, 11});
  fill_both_pools(gpu);
  Block* const block = gpu.malloc(36_MiB);
  CHECK_EQUAL(gpu.events(), "alloc 36M");
  gpu.free({block});  // returns to its own pool
  CHECK_EQUAL(malloc_in(gpu, kPool, 40_MiB), block);
}

TEST(native_takes_from_oom_pools_last_before_2_11) {
  Gpu gpu(100_MiB, "", {2, 10});
  fill_both_pools(gpu);
  gpu.malloc(36_MiB);
  CHECK_EQUAL(gpu.events(), "segment_free 30M, segment_alloc 36M, alloc 36M");
  gpu.malloc(36_MiB);
  CHECK_EQUAL(gpu.events(), "alloc 36M");
  CHECK_EQUAL(gpu.allocator.statistics().num_ooms, 0);
}

TEST(native_takes_from_no_other_private_pool) {
  Gpu gpu(100_MiB);
  gpu.free({malloc_in(gpu, kPool, 60_MiB)});
  CHECK_THROWS(gpu.malloc(50_MiB), OutOfMemory);
  gpu.allocator.set_pool_option(kPool, PoolOption::use_on_oom, true);
  CHECK_THROWS(malloc_in(gpu, kOther, 50_MiB), OutOfMemory);
  CHECK(gpu.malloc(50_MiB) != nullptr);
}

TEST(native_forgets_with_the_last_use_that_a_pool_is_not_split_from_2_14_on) {
  for (const auto& [version, layout] :
       {std::pair{"2.13", "[20M used] [20M used]"}, {"2.14", "[5M used, 15M free] [20M used]"}}) {
    Gpu gpu(1_GiB, "", TorchVersion::parse(version));
    const PoolId pool{0, 1};
    gpu.allocator.use_pool(pool);
    gpu.allocator.set_pool_option(pool, PoolOption::no_split, true);
    gpu.allocator.begin_allocate_to_pool(pool, {});
    gpu.malloc(5_MiB);
    gpu.allocator.end_allocate_to_pool(pool);
    CHECK_EQUAL(gpu.layout(), "[20M used]");
    for (int i = 0; i < 2; ++i) gpu.allocator.release_pool(pool);
    gpu.allocator.begin_allocate_to_pool(pool, {});
    gpu.malloc(5_MiB);
    gpu.allocator.end_allocate_to_pool(pool);
    CHECK_EQUAL(gpu.layout(), layout);
  }
}

}  // namespace plimsoll
