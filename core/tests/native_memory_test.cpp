// Tests what PyTorch's allocator does when the driver or the limit refuses memory: it collects
// garbage, returns cached memory, and fails in the end.

#include <optional>
#include <string>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

using Outlook = NativeAllocator::Outlook;

std::optional<OutOfMemoryReport> failure(Gpu& gpu, Bytes size, StreamId stream = 0) {
  try {
    gpu.malloc(size, stream);
  } catch (const OutOfMemory& error) {
    return error.report();
  }
  return std::nullopt;
}

}  // namespace

// --- which memory is returned first ------------------------------------------------------------

TEST(native_first_returns_the_oversize_block_that_suffices) {
  Gpu gpu(200_MiB, "max_split_size_mb:32");
  gpu.free({gpu.malloc(20_MiB), gpu.malloc(100_MiB), gpu.malloc(60_MiB)});
  gpu.events();
  gpu.malloc(40_MiB);  // the free block of 60 MiB would waste too much
  CHECK_EQUAL(gpu.events(), "segment_free 60M, segment_alloc 40M, alloc 40M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 0);
}

TEST(native_returns_several_oversize_blocks_from_the_largest_down) {
  Gpu gpu(200_MiB, "max_split_size_mb:32");
  gpu.free({gpu.malloc(30_MiB), gpu.malloc(34_MiB), gpu.malloc(40_MiB), gpu.malloc(60_MiB)});
  gpu.events();
  gpu.malloc(80_MiB);
  CHECK_EQUAL(gpu.events(), "segment_free 60M, segment_free 40M, segment_alloc 80M, alloc 80M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 0);
}

TEST(native_returns_all_cached_blocks_when_the_oversize_ones_do_not_suffice) {
  Gpu gpu(100_MiB, "max_split_size_mb:32");
  gpu.free({gpu.malloc(512), gpu.malloc(30_MiB), gpu.malloc(40_MiB, 1)});
  gpu.events();
  // PyTorch would first give back only oversize blocks of the request's stream. The only oversize
  // block is on stream 1, so PyTorch gives back all cached blocks.
  gpu.malloc(90_MiB);
  CHECK_EQUAL(gpu.events(),
              "segment_free 30M, segment_free 40M, segment_free 2M, segment_alloc 90M, alloc 90M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
}

TEST(native_returns_no_segment_that_is_in_use) {
  Gpu gpu(100_MiB);
  gpu.malloc(5_MiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.events();
  gpu.malloc(60_MiB);
  CHECK_EQUAL(gpu.events(), "segment_free 40M, segment_alloc 60M, alloc 60M");
  CHECK_EQUAL(gpu.reserved(), 80_MiB);
}

TEST(native_does_not_search_its_cache_again_before_it_fails) {
  Gpu gpu(20_MiB);
  gpu.malloc(5_MiB);
  Block* const block = gpu.malloc(15_MiB);
  gpu.driver.hold(2);
  gpu.allocator.record_stream(block, 2);
  gpu.free({block});
  gpu.events();
  CHECK(failure(gpu, 15_MiB).has_value());
  CHECK_EQUAL(gpu.events(), "free_completed 15M, oom 15M");
  CHECK(!failure(gpu, 15_MiB).has_value());
}

// --- failing -----------------------------------------------------------------------------------

TEST(native_reports_what_was_asked_and_what_was_free) {
  Gpu gpu(100_MiB);
  gpu.malloc(5_MiB);
  gpu.free({gpu.malloc(20_MiB)});
  gpu.allocator.set_limit(90_MiB);
  gpu.events();
  const auto report = failure(gpu, 80_MiB + 1);
  CHECK(report.has_value());
  CHECK_EQUAL(report->requested, 80_MiB + 1);
  CHECK_EQUAL(report->tried, 82_MiB);
  CHECK_EQUAL(report->device_total, 100_MiB);
  CHECK_EQUAL(report->device_free, 80_MiB);
  CHECK_EQUAL(report->limit.value_or(0), 90_MiB);
  CHECK_EQUAL(report->allocated, 5_MiB);
  CHECK_EQUAL(report->reserved, 20_MiB);
  CHECK_EQUAL(report->free_in_private_pools, 0U);
  const Statistics& statistics = gpu.allocator.statistics();
  CHECK_EQUAL(statistics.num_alloc_retries, 1);
  CHECK_EQUAL(statistics.num_ooms, 1);
  CHECK_EQUAL(statistics.num_oom_rejections, 0);
  const History& history = gpu.allocator.history();
  CHECK_EQUAL(history[1].address, 80_MiB);  // an oom event's "address" is the device's free memory
  CHECK_EQUAL(gpu.events(), "segment_free 20M, oom 83886592");
}

TEST(native_fails_with_the_sentence_of_pytorch) {
  Gpu gpu(1_GiB);
  gpu.malloc(5_MiB);
  gpu.allocator.set_limit(500_MiB);
  const std::string message = message_of<OutOfMemory>([&] { return gpu.malloc(2_GiB); });
  const std::string start =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1024.00 MiB "
      "of which 1004.00 MiB is free. Including non-PyTorch memory, this process has 20.00 MiB "
      "memory in use. 500.00 MiB allowed; Of the allocated memory 5.00 MiB is allocated by "
      "PyTorch, and 15.00 MiB is reserved by PyTorch but unallocated. ";
  CHECK_EQUAL(message.substr(0, start.size()), start);
}

TEST(native_leaves_live_blocks_alone_when_it_fails) {
  Gpu gpu(64_MiB);
  Block* const first = gpu.malloc(5_MiB);
  Block* const freed = gpu.malloc(5_MiB);
  Block* const second = gpu.malloc(600);
  gpu.free({freed});
  const std::string before = gpu.layout();
  const std::string blocks = std::to_string(first->address) + std::to_string(second->address);
  for (const Bytes size : {50_MiB, 64_MiB, 1_GiB}) CHECK(failure(gpu, size).has_value());
  CHECK_EQUAL(gpu.layout(), before);
  CHECK_EQUAL(std::to_string(first->address) + std::to_string(second->address), blocks);
  CHECK_EQUAL(second->requested, 600U);
  gpu.allocator.check_invariants();
  gpu.free({first, second});
  CHECK(!failure(gpu, 64_MiB).has_value());
}

TEST(native_names_driver_errors_other_than_out_of_memory) {
  Gpu gpu(64_MiB);
  gpu.driver.inject({Call::allocate, 0, 1, Status::not_supported});
  CHECK_EQUAL(message_of<DriverError>([&] { return gpu.malloc(512); }),
              "the driver failed to allocate memory: not supported");
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.layout(), "");
  CHECK(gpu.malloc(512) != nullptr);
}

// --- the limit ---------------------------------------------------------------------------------

TEST(native_treats_the_limit_like_a_full_device) {
  Gpu gpu(1_GiB);
  gpu.allocator.set_limit(50_MiB);
  gpu.free({gpu.malloc(30_MiB)});
  gpu.events();
  gpu.malloc(50_MiB);
  CHECK_EQUAL(gpu.events(), "segment_free 30M, segment_alloc 50M, alloc 50M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
  CHECK_EQUAL(gpu.driver.calls(Call::allocate), 2U);  // above the limit the driver is not called
  CHECK(failure(gpu, 512).has_value());
  gpu.allocator.set_limit(std::nullopt);
  CHECK(!failure(gpu, 512).has_value());
}

TEST(native_takes_its_limit_from_the_configured_fraction) {
  Gpu gpu(1_GiB, "per_process_memory_fraction:0.25");
  CHECK_EQUAL(gpu.allocator.limit().value_or(0), 256_MiB);
  CHECK(!failure(gpu, 256_MiB).has_value());
  CHECK(failure(gpu, 512).has_value());
  CHECK(!Gpu(1_GiB, "per_process_memory_fraction:1.0").allocator.limit().has_value());
}

TEST(native_may_refuse_beyond_the_device_without_giving_back_its_cache) {
  Gpu gpu(50_MiB, "throw_on_cudamalloc_oom:True");
  gpu.free({gpu.malloc(30_MiB)});
  gpu.events();
  CHECK(failure(gpu, 40_MiB).has_value());
  CHECK_EQUAL(gpu.events(), "");
  CHECK_EQUAL(gpu.reserved(), 30_MiB);
  CHECK_EQUAL(gpu.allocator.statistics().num_oom_rejections, 1);
  CHECK_EQUAL(gpu.allocator.statistics().num_ooms, 0);
  CHECK_EQUAL(message_of<OutOfMemory>([&] { return gpu.malloc(40_MiB + 1); }),
              "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
              "per_process_memory_fraction limit. Requested size: 40.00 MiB");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 0);
  CHECK(!failure(gpu, 30_MiB).has_value());  // a cached block needs no memory of the device
}

TEST(native_gives_back_its_cache_at_the_limit_even_if_it_may_refuse) {
  for (const char* const config :
       {"throw_on_cudamalloc_oom:True",
        "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"}) {
    Gpu gpu(100_MiB, config);
    gpu.allocator.set_limit(50_MiB);
    gpu.free({gpu.malloc(30_MiB)});
    gpu.events();
    CHECK(!failure(gpu, 40_MiB).has_value());
    CHECK_EQUAL(gpu.events(), "segment_free 30M, segment_alloc 40M, alloc 40M");
    CHECK(failure(gpu, 20_MiB).has_value());
    CHECK_EQUAL(gpu.allocator.statistics().num_oom_rejections, 0);
    CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 2);
  }
}

TEST(native_may_refuse_also_once_it_has_given_back_its_cache) {
  Gpu gpu(150_MiB);
  gpu.allocator.set_limit(102_MiB);
  Block* const cached = gpu.malloc(2_MiB);
  gpu.malloc(54_MiB);
  gpu.allocator.configure(
      gpu.allocator.config().with("per_process_memory_fraction:0.3,throw_on_cudamalloc_oom:True"));
  gpu.free({cached});
  gpu.events();
  CHECK(failure(gpu, 30_MiB).has_value());
  CHECK_EQUAL(gpu.events(), "segment_free 20M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 1);
  CHECK_EQUAL(gpu.allocator.statistics().num_oom_rejections, 1);
}

TEST(a_fraction_of_memory_is_rounded_from_2_13_on) {
  const auto limit = [](double fraction, TorchVersion version) {
    return limit_of(fraction, 1001, version);
  };
  CHECK_EQUAL(limit(0.5, {2, 12}).value_or(0), 500U);
  CHECK_EQUAL(limit(0.5, {2, 13}).value_or(0), 501U);
  CHECK_EQUAL(limit(0.499, {2, 13}).value_or(0), 499U);
  CHECK_EQUAL(limit(1, {2, 9}).value_or(0), 1001U);
  CHECK(!limit(1, {2, 10}).has_value());
}

TEST(native_words_its_failures_as_each_version_does) {
  const auto message = [](TorchVersion version, const char* config) {
    Gpu gpu(10_MiB, config, version);
    return message_of<OutOfMemory>([&] { return gpu.malloc(100_MiB); });
  };
  const char* const growing = "expandable_segments:True";
  const std::string old_page =
      "(https://pytorch.org/docs/stable/notes/cuda.html"
      "#environment-variables)";
  for (const char* const config : {"", growing}) {
    CHECK(message({2, 9}, config).ends_with(old_page));
    CHECK(contains(message({2, 9}, config), "try setting PYTORCH_CUDA_ALLOC_CONF="));
    CHECK(message({2, 10}, config).ends_with(old_page));
    CHECK(contains(message({2, 10}, config), "try setting PYTORCH_ALLOC_CONF="));
    CHECK(message({2, 13}, config).ends_with("with-pytorch-cuda-alloc-conf)"));
  }
  CHECK(message({2, 14}, "").ends_with("with-pytorch-cuda-alloc-conf)"));
  CHECK(message({2, 14}, growing).ends_with("is reserved by PyTorch but unallocated."));
  CHECK(message({2, 15}, growing).ends_with("expandable_segments_reserve_by_class."));
}

// --- garbage collection ------------------------------------------------------------------------

namespace {

// Reserves 82 MiB: 20 MiB that were freed long ago, 30 MiB that were freed just now, 12 MiB in use,
// and a segment of 20 MiB on stream 1.
void fill_with_garbage(Gpu& gpu) {
  Block* const old = gpu.malloc(20_MiB);
  Block* const young = gpu.malloc(30_MiB);
  gpu.malloc(12_MiB);
  gpu.malloc(5_MiB, 1);
  gpu.free({old});
  // PyTorch counts the age of a free block in requests, so these requests make `old` older.
  for (int i = 0; i < 4; ++i) gpu.free({gpu.malloc(5_MiB, 1)});
  gpu.free({young});
  gpu.events();
}

}  // namespace

TEST(native_collects_old_blocks_above_the_threshold) {
  Gpu gpu(1_GiB, "garbage_collection_threshold:0.5");
  gpu.allocator.set_limit(140_MiB);
  fill_with_garbage(gpu);
  gpu.malloc(40_MiB);
  CHECK_EQUAL(gpu.events(), "segment_free 20M, segment_alloc 40M, alloc 40M");
  CHECK_EQUAL(gpu.allocator.statistics().num_alloc_retries, 0);
}

TEST(native_collects_younger_blocks_when_the_old_ones_do_not_suffice) {
  Gpu gpu(1_GiB, "garbage_collection_threshold:0.35");
  gpu.allocator.set_limit(140_MiB);  // 82 MiB are reserved, 33 MiB above the threshold
  fill_with_garbage(gpu);
  gpu.malloc(40_MiB);
  CHECK_EQUAL(gpu.events(), "segment_free 20M, segment_free 30M, segment_alloc 40M, alloc 40M");
}

TEST(native_collects_nothing_below_the_threshold_or_without_a_limit) {
  for (const bool has_limit : {true, false}) {
    Gpu gpu(1_GiB, "garbage_collection_threshold:0.5");
    if (has_limit) gpu.allocator.set_limit(164_MiB);
    fill_with_garbage(gpu);
    gpu.malloc(40_MiB);
    CHECK_EQUAL(gpu.events(), "segment_alloc 40M, alloc 40M");
  }
}

TEST(native_collects_no_small_split_or_expandable_blocks) {
  Gpu gpu(1_GiB, "garbage_collection_threshold:0.1,expandable_segments:True");
  gpu.allocator.set_limit(200_MiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.allocator.configure(AllocatorConfig::parse("garbage_collection_threshold:0.1"));
  gpu.malloc(5_MiB, 1);
  gpu.free({gpu.malloc(512, 1)});
  gpu.events();
  gpu.malloc(50_MiB, 1);
  CHECK_EQUAL(gpu.events(), "segment_alloc 50M, alloc 50M");
}

// --- predicting what a request will do ---------------------------------------------------------

TEST(native_foresees_what_a_request_comes_to) {
  Gpu gpu(1_GiB, "garbage_collection_threshold:0.5");
  gpu.allocator.set_limit(100_MiB);
  gpu.free({gpu.malloc(40_MiB)});
  gpu.events();
  CHECK(gpu.allocator.outlook(20_MiB, 0) == Outlook::cached);
  CHECK(gpu.allocator.outlook(50_MiB, 0) == Outlook::grows);
  CHECK(gpu.allocator.outlook(62_MiB, 0) == Outlook::refused);
  gpu.malloc(20_MiB, 1);
  gpu.events();
  CHECK(gpu.allocator.outlook(40_MiB, 1) == Outlook::collects);
  CHECK_EQUAL(gpu.events(), "");
  CHECK_EQUAL(gpu.reserved(), 60_MiB);
}

TEST(native_foresees_a_full_device) {
  Gpu gpu(100_MiB);
  gpu.malloc(60_MiB);
  CHECK(gpu.allocator.outlook(40_MiB, 0) == Outlook::grows);
  CHECK(gpu.allocator.outlook(42_MiB, 0) == Outlook::refused);
}

TEST(native_foresees_that_an_expandable_segment_grows_by_whole_pages) {
  Gpu gpu(100_MiB, "expandable_segments:True");
  gpu.malloc(60_MiB);
  CHECK(gpu.allocator.outlook(38_MiB, 0) == Outlook::grows);
  gpu.malloc(2_MiB);
  CHECK(gpu.allocator.outlook(38_MiB, 0) == Outlook::grows);  // 18 of the 38 MiB are mapped already
  CHECK(gpu.allocator.outlook(38_MiB, 1) == Outlook::refused);
  CHECK_EQUAL(gpu.driver.calls(Call::reserve), 1U);
}

}  // namespace plimsoll
