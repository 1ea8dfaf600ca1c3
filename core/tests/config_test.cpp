#include "plimsoll/allocator/config.h"

#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr TorchVersion kOldest{2, 9};

AllocatorConfig parse(std::string_view text, TorchVersion version = {}) {
  return AllocatorConfig::parse(text, version);
}

std::string refusal(std::string_view text, TorchVersion version = {}) {
  return message_of<ConfigError>([&] { return parse(text, version); });
}

// Returns the divisions of all intervals, from 1 MiB on, as "4 4 8 0 ...". The last number holds
// for all intervals that follow.
std::string divisions(std::string_view value) {
  const auto slots =
      parse("roundup_power2_divisions:" + std::string(value)).roundup_power2_divisions;
  std::size_t count = slots.size();
  while (count > 1 && slots[count - 2] == slots.back()) --count;
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += std::to_string(slots[i]) + ' ';
  return text + "...";
}

// Rounds a size up by trying every step between the two powers of two around it.
Bytes rounded_by_search(Bytes size, Bytes division) {
  Bytes multiple = 512;
  if (division > 1 && size > 512 * division) {
    Bytes floor = 1;
    while (floor * 2 <= size) floor *= 2;
    for (Bytes step = 0; step < division; ++step) {
      if (floor + floor / division * step >= size) return floor + floor / division * step;
    }
    return floor * 2;
  }
  while (multiple < size) multiple += 512;
  return multiple;
}

std::vector<Bytes> interesting_sizes() {
  std::vector<Bytes> sizes;
  for (Bytes size = 1; size < 20000; size += 37) sizes.push_back(size);
  for (int exponent = 9; exponent <= 22; ++exponent) {
    const Bytes power = Bytes{1} << exponent;
    for (Bytes eighths = 8; eighths < 16; ++eighths) {
      const Bytes size = power / 8 * eighths;
      for (const Bytes near : {size - 1, size, size + 1}) sizes.push_back(near);
    }
  }
  return sizes;
}

}  // namespace

// --- keys --------------------------------------------------------------------------------------

TEST(config_without_text_is_the_default) {
  const AllocatorConfig config = parse("");
  CHECK_EQUAL(config.max_split_size, AllocatorConfig::kUnlimited);
  CHECK_EQUAL(config.max_non_split_rounding, 20_MiB);
  CHECK_EQUAL(config.large_segment_size, 20_MiB);
  CHECK_EQUAL(config.garbage_collection_threshold, 0.0);
  CHECK_EQUAL(config.per_process_memory_fraction, 1.0);
  CHECK(!config.expandable_segments);
  CHECK(!config.throw_on_cudamalloc_oom);
  CHECK(config.roundup_power2_divisions == decltype(config.roundup_power2_divisions){});
  CHECK(config.without_effect.empty());
}

TEST(config_reads_every_key) {
  CHECK_EQUAL(parse("max_split_size_mb:128").max_split_size, 128_MiB);
  CHECK_EQUAL(parse("max_non_split_rounding_mb:64").max_non_split_rounding, 64_MiB);
  CHECK_EQUAL(parse("large_segment_size_mb:32").large_segment_size, 32_MiB);
  CHECK_EQUAL(parse("garbage_collection_threshold:0.8").garbage_collection_threshold, 0.8);
  CHECK_EQUAL(parse("per_process_memory_fraction:0.25").per_process_memory_fraction, 0.25);
  CHECK(parse("expandable_segments:True").expandable_segments);
  CHECK(!parse("expandable_segments:False").expandable_segments);
  CHECK(parse("throw_on_cudamalloc_oom:True").throw_on_cudamalloc_oom);
  CHECK_EQUAL(refusal("backend:native"), "");
}

TEST(config_bounds_expandable_segments_by_a_reserve) {
  const auto size = [](const char* text) { return parse(text).expandable_size(80_GiB); };
  CHECK_EQUAL(size(""), 90_GiB);
  CHECK_EQUAL(size("expandable_segments_reserve:0.5"), 40_GiB);
  CHECK_EQUAL(size("expandable_segments_reserve:40G"), 40_GiB);
  CHECK_EQUAL(size("expandable_segments_reserve:0.5g"), 512_MiB);
  CHECK_EQUAL(size("expandable_segments_reserve:1e300"), 90_GiB);
  CHECK_EQUAL(size("expandable_segments_reserve:1e300G"), 90_GiB);
  CHECK_EQUAL(size("expandable_segments_reserve:1.1"), static_cast<Bytes>(1.1 * (80_GiB)));
  const AllocatorConfig config = parse("expandable_segments_reserve_by_class:[comm:0.1,side:2G]");
  CHECK_EQUAL(config.expandable_size(80_GiB), 90_GiB);
  CHECK_EQUAL(config.without_effect.size(), 1U);
}

TEST(config_refuses_reserves_that_pytorch_would_ignore) {
  for (const char* const value : {"0", "-1", "0G", "inf", "nan", "half", "40GB", "40M", "G"}) {
    CHECK_EQUAL(
        refusal(std::string("expandable_segments_reserve:") + value),
        "'expandable_segments_reserve' takes a part of the device's memory, such as 0.5, or "
        "a size such as 40G, not '" +
            std::string(value) + "'");
    CHECK(
        contains(refusal(std::string("expandable_segments_reserve_by_class:[a:1,b:") + value + "]"),
                 "not '" + std::string(value) + "'"));
  }
  for (const char* const value : {"0.5", "[0.5]", "[:0.5]", "a:0.5"}) {
    CHECK(!refusal(std::string("expandable_segments_reserve_by_class:") + value).empty());
  }
  CHECK_EQUAL(refusal("expandable_segments_reserve:[0.5]"),
              "'expandable_segments_reserve' takes one value, not a list");
}

TEST(config_reads_several_keys_with_spaces_and_a_trailing_comma) {
  const std::string_view text = " max_split_size_mb : 64 ,expandable_segments:True,";
  const AllocatorConfig config = parse(text);
  CHECK_EQUAL(config.max_split_size, 64_MiB);
  CHECK(config.expandable_segments);
  CHECK_EQUAL(config.text, text);
}

TEST(config_lets_the_last_of_equal_keys_count) {
  CHECK_EQUAL(parse("max_split_size_mb:64,max_split_size_mb:32").max_split_size, 32_MiB);
}

TEST(config_names_the_keys_that_change_no_device_memory) {
  const AllocatorConfig config =
      parse("pinned_num_register_threads:8,max_split_size_mb:64,release_lock_on_cudamalloc:True");
  CHECK_EQUAL(config.without_effect.size(), 2U);
  CHECK_EQUAL(config.without_effect[0].first, "pinned_num_register_threads");
  CHECK(contains(config.without_effect[0].second, "pinned"));
  CHECK_EQUAL(config.without_effect[1].first, "release_lock_on_cudamalloc");
  for (const char* const key :
       {"release_lock_on_hipmalloc", "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register", "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb", "pinned_free_catch_all", "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb", "graph_capture_record_stream_reuse"}) {
    CHECK_EQUAL(parse(std::string(key) + ":1").without_effect.size(), 1U);
  }
}

TEST(config_names_unknown_keys_and_offers_the_known_ones) {
  const std::string message = refusal("max_split_size:64");
  CHECK(contains(message, "unknown key 'max_split_size'"));
  CHECK(contains(message, "max_split_size_mb"));
}

TEST(config_knows_which_version_has_which_key) {
  CHECK_EQUAL(refusal("large_segment_size_mb:32", {2, 11}), "");
  CHECK_EQUAL(refusal("large_segment_size_mb:32", {2, 10}),
              "'large_segment_size_mb' exists from PyTorch 2.11 on, not in 2.10");
  CHECK_EQUAL(refusal("throw_on_cudamalloc_oom:True", {2, 12}), "");
  CHECK_EQUAL(refusal("throw_on_cudamalloc_oom:True", {2, 11}),
              "'throw_on_cudamalloc_oom' exists from PyTorch 2.12 on, not in 2.11");
  CHECK_EQUAL(refusal("expandable_segments_reserve:0.5", {2, 14}),
              "'expandable_segments_reserve' exists from PyTorch 2.15 on, not in 2.14");
  CHECK_EQUAL(refusal("expandable_segments_reserve_by_class:[a:1]", {2, 14}),
              "'expandable_segments_reserve_by_class' exists from PyTorch 2.15 on, not in 2.14");
  CHECK_EQUAL(refusal("pinned_max_cached_size_mb:1", kOldest),
              "'pinned_max_cached_size_mb' exists from PyTorch 2.13 on, not in 2.9");
  CHECK_EQUAL(refusal("pinned_max_round_threshold_mb:1", {2, 12}),
              "'pinned_max_round_threshold_mb' exists from PyTorch 2.13 on, not in 2.12");
  CHECK_EQUAL(refusal("pinned_free_catch_all:True", {2, 11}),
              "'pinned_free_catch_all' exists from PyTorch 2.12 on, not in 2.11");
  CHECK_EQUAL(refusal("pinned_reserve_segment_size_mb:16", {2, 9}),
              "'pinned_reserve_segment_size_mb' exists from PyTorch 2.10 on, not in 2.9");
  CHECK_EQUAL(refusal("per_process_memory_fraction:0.5", {2, 9}),
              "'per_process_memory_fraction' exists from PyTorch 2.10 on, not in 2.9");
  CHECK_EQUAL(refusal("max_split_size_mb:64,expandable_segments:True", kOldest), "");
}

// --- bounds and malformed text -----------------------------------------------------------------

TEST(config_checks_the_bounds_of_sizes) {
  CHECK_EQUAL(parse("max_split_size_mb:20").max_split_size, 20_MiB);
  CHECK_EQUAL(refusal("max_split_size_mb:19"), "'max_split_size_mb' must be at least 20, not 19");
  CHECK_EQUAL(parse("max_non_split_rounding_mb:20").max_non_split_rounding, 20_MiB);
  CHECK(contains(refusal("max_non_split_rounding_mb:19"), "at least 20"));
  CHECK_EQUAL(parse("large_segment_size_mb:11").large_segment_size, 11_MiB);
  CHECK(contains(refusal("large_segment_size_mb:10"), "at least 11"));
  CHECK_EQUAL(parse("max_split_size_mb:18446744073709551615").max_split_size % kMiB, 0U);
}

TEST(config_takes_the_size_of_large_segments_for_a_bound_from_2_10_on) {
  for (const std::string key : {"max_split_size_mb", "max_non_split_rounding_mb"}) {
    CHECK_EQUAL(refusal(key + ":20", {2, 9}), "'" + key + "' must be at least 21, not 20");
    CHECK_EQUAL(refusal(key + ":21", {2, 9}), "");
    CHECK_EQUAL(refusal(key + ":20", {2, 10}), "");
  }
}

TEST(config_rounds_as_much_as_a_large_segment_from_2_11_on) {
  const auto rounding = [](const AllocatorConfig& config) { return config.max_non_split_rounding; };
  CHECK_EQUAL(rounding(parse("large_segment_size_mb:12")), 12_MiB);
  CHECK_EQUAL(rounding(parse("max_non_split_rounding_mb:41,large_segment_size_mb:12")), 41_MiB);
  const AllocatorConfig explicit_one = parse("max_non_split_rounding_mb:41");
  CHECK_EQUAL(rounding(explicit_one.with("max_split_size_mb:50")), 20_MiB);
  CHECK_EQUAL(explicit_one.with("max_split_size_mb:50").text, "max_split_size_mb:50");
  CHECK_EQUAL(rounding(explicit_one.with("large_segment_size_mb:12")), 12_MiB);
  CHECK_EQUAL(rounding(explicit_one.with("max_split_size_mb:50", {2, 10})), 41_MiB);
}

TEST(config_fills_the_last_interval_as_well_in_2_9) {
  const char* const text = "roundup_power2_divisions:[16:8,>:4]";
  CHECK_EQUAL(AllocatorConfig::parse(text, {2, 9}).round_request(20_MiB + 1), 24_MiB);
  CHECK_EQUAL(AllocatorConfig::parse(text, {2, 10}).round_request(20_MiB + 1), 22_MiB);
}

TEST(config_bounds_the_split_size_by_the_large_segment_wherever_it_stands) {
  CHECK(contains(refusal("max_split_size_mb:32,large_segment_size_mb:64"), "at least 64"));
  CHECK_EQUAL(refusal("max_split_size_mb:15,large_segment_size_mb:12"), "");
}

TEST(config_checks_the_bounds_of_fractions) {
  for (const char* const value : {"0", "1", "-0.5", "1.5", "nan"}) {
    CHECK(
        contains(refusal("garbage_collection_threshold:" + std::string(value)), "between 0 and 1"));
  }
  for (const char* const value : {"0", "0.5", "1", "1.0"}) {
    CHECK_EQUAL(refusal("per_process_memory_fraction:" + std::string(value)), "");
  }
  for (const char* const value : {"-0.1", "1.01", "nan"}) {
    CHECK(
        contains(refusal("per_process_memory_fraction:" + std::string(value)), "between 0 and 1"));
  }
}

TEST(config_says_what_is_wrong_with_malformed_text) {
  CHECK_EQUAL(refusal("max_split_size_mb"),
              "'max_split_size_mb' needs a value, as in 'max_split_size_mb:VALUE'");
  CHECK_EQUAL(refusal("max_split_size_mb:"),
              "'max_split_size_mb' needs a value, as in 'max_split_size_mb:VALUE'");
  CHECK_EQUAL(refusal("expandable_segments:True,max_split_size_mb=128"),
              "a colon stands between a key and its value; did you mean 'max_split_size_mb:128'?");
  CHECK_EQUAL(refusal("max_split_size_mb:64MB"), "'max_split_size_mb' takes a number, not '64MB'");
  CHECK_EQUAL(refusal("max_split_size_mb:-1"), "'max_split_size_mb' takes a number, not '-1'");
  CHECK_EQUAL(refusal("max_split_size_mb:[64]"), "'max_split_size_mb' takes one value, not a list");
  CHECK_EQUAL(refusal("expandable_segments:true"),
              "'expandable_segments' takes True or False, not 'true'");
  CHECK(contains(refusal(",expandable_segments:True"), "expected a key"));
  CHECK(contains(refusal("expandable_segments:True,,backend:native"), "expected a key"));
  CHECK(contains(refusal("expandable_segments:True]"), "expected a comma"));
  CHECK(contains(refusal("backend:cudaMallocAsync"), "not modelled"));
  CHECK(contains(refusal("roundup_power2_divisions:[256:1"), "no closing ']'"));
  CHECK(contains(refusal("roundup_power2_divisions:[]"), "needs a value"));
}

// --- roundup_power2_divisions ------------------------------------------------------------------

TEST(config_reads_one_number_of_divisions_for_all_sizes) {
  CHECK_EQUAL(divisions("4"), "4 ...");
  CHECK_EQUAL(divisions("1"), "1 ...");
  CHECK(contains(refusal("roundup_power2_divisions:0"), "powers of two"));
  CHECK(contains(refusal("roundup_power2_divisions:6"), "powers of two, not by 6"));
}

TEST(config_reads_divisions_by_size) {
  // The intervals begin at 1, 2, 4 … MiB, so 4 MiB begins the third. The divisions of the first key
  // in the text also hold for all intervals below that key, even if a later key is lower.
  CHECK_EQUAL(divisions("[4:8]"), "8 8 8 0 ...");
  CHECK_EQUAL(divisions("[1:2,4:8]"), "2 0 8 0 ...");
  CHECK_EQUAL(divisions("[4:8,1:2]"), "2 8 8 0 ...");
  CHECK_EQUAL(divisions("[2:4,8:0]"), "4 4 0 ...");
  CHECK_EQUAL(divisions("[32768:2]"), "2 ...");
  CHECK_EQUAL(divisions("[65536:2]"), "2 ...");
}

TEST(config_lets_the_last_divisions_reach_upwards) {
  CHECK_EQUAL(divisions("[1:2,4:8,>:16]"), "2 0 8 16 ...");
  CHECK_EQUAL(divisions("[4:8,1:2,>:16]"), "2 16 ...");
  CHECK_EQUAL(divisions("[>:16]"), "0 16 ...");
  CHECK_EQUAL(divisions("[32768:2,>:16]"), "2 ...");
  CHECK_EQUAL(divisions("[1:4,>:2,4:8]"), "4 2 8 2 ...");
}

TEST(config_refuses_malformed_divisions) {
  CHECK(contains(refusal("roundup_power2_divisions:[256]"), "entries like 256:4"));
  CHECK(contains(refusal("roundup_power2_divisions:[3:4]"), "powers of two in MiB, not 3"));
  CHECK(contains(refusal("roundup_power2_divisions:[0:4]"), "powers of two in MiB, not 0"));
  CHECK(contains(refusal("roundup_power2_divisions:[4:3]"), "powers of two, not by 3"));
  CHECK(contains(refusal("roundup_power2_divisions:[x:4]"), "takes a number, not 'x'"));
  CHECK(contains(refusal("roundup_power2_divisions:[4:4,,8:4]"), "entries like 256:4"));
}

// --- rounding ----------------------------------------------------------------------------------

TEST(config_rounds_requests_to_512_bytes_by_default) {
  const AllocatorConfig config = parse("");
  for (const Bytes size : interesting_sizes()) {
    CHECK_EQUAL(config.round_request(size), rounded_by_search(size, 0));
  }
}

TEST(config_rounds_requests_to_a_division_of_a_power_of_two) {
  for (Bytes division = 1; division <= 4096; division *= 2) {
    const AllocatorConfig config = parse("roundup_power2_divisions:" + std::to_string(division));
    for (const Bytes size : interesting_sizes()) {
      CHECK_EQUAL(config.round_request(size), rounded_by_search(size, division));
    }
  }
}

TEST(config_rounds_by_the_interval_of_the_size) {
  const AllocatorConfig config = parse("roundup_power2_divisions:[1:2,2:4,>:8]");
  // Sizes below 1 MiB use the divisions of the interval at 1 MiB.
  CHECK_EQUAL(config.round_request(3_KiB + 1), 4_KiB);
  CHECK_EQUAL(config.round_request(2_MiB - 1), 2_MiB);
  CHECK_EQUAL(config.round_request(1_MiB + 1), 1_MiB + 512_KiB);
  CHECK_EQUAL(config.round_request(2_MiB + 1), 2_MiB + 512_KiB);
  CHECK_EQUAL(config.round_request(4_MiB + 1), 4_MiB + 512_KiB);
  CHECK_EQUAL(config.round_request(64_GiB + 1), 72_GiB);
}

TEST(config_sizes_segments_by_their_first_request) {
  const AllocatorConfig config = parse("");
  CHECK_EQUAL(config.segment_size(512), 2_MiB);
  CHECK_EQUAL(config.segment_size(1_MiB), 2_MiB);
  CHECK_EQUAL(config.segment_size(1_MiB + 512), 20_MiB);
  CHECK_EQUAL(config.segment_size(10_MiB - 512), 20_MiB);
  CHECK_EQUAL(config.segment_size(10_MiB), 10_MiB);
  CHECK_EQUAL(config.segment_size(10_MiB + 512), 12_MiB);
  CHECK_EQUAL(parse("large_segment_size_mb:64").segment_size(2_MiB), 64_MiB);
}

// --- versions ----------------------------------------------------------------------------------

TEST(config_reads_versions) {
  CHECK(TorchVersion::parse("2.11") == (TorchVersion{2, 11}));
  CHECK(TorchVersion::parse("2.9.1") == (TorchVersion{2, 9}));
  CHECK(TorchVersion::parse("2.11.0+cu130") == (TorchVersion{2, 11}));
  CHECK(TorchVersion::parse("2.13+cpu") == (TorchVersion{2, 13}));
  CHECK_EQUAL((TorchVersion{2, 10}.to_string()), "2.10");
  CHECK(TorchVersion{} == (TorchVersion{2, 15}));
}

TEST(config_refuses_versions_it_does_not_know) {
  for (const char* const text :
       {"2.8", "2.16", "3.9", "1.13", "", "2", "2.", "2.11x", "2,11", "two", "2.11 ", "2.-9"}) {
    CHECK_THROWS(TorchVersion::parse(text), ConfigError);
  }
  CHECK_EQUAL(message_of<ConfigError>([] { return TorchVersion::parse("2.8"); }),
              "unknown PyTorch version '2.8'; known are 2.9 to 2.15");
}

}  // namespace plimsoll
