#include "random_program.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace plimsoll;

// Draws random numbers that are the same with every C++ library. The distributions of <random> are
// not used, because their results differ between libraries.
class Choices {
 public:
  explicit Choices(std::uint64_t seed) : engine_(seed) {}

  // Returns a number less than `end`.
  std::uint64_t below(std::uint64_t end) { return engine_() % end; }
  bool happens(std::uint64_t percent) { return below(100) < percent; }
  template <typename Options>
  const auto& one_of(const Options& options) {
    return *std::next(options.begin(), static_cast<std::ptrdiff_t>(below(options.size())));
  }

 private:
  std::mt19937_64 engine_;
};

// --- settings ------------------------------------------------------------------------------------

struct Setting {
  const char* key;
  TorchVersion since;
  std::vector<const char*> values;
};
const std::vector<Setting> kSettings = {
    {"expandable_segments", {2, 9}, {"True", "True", "False"}},
    {"max_split_size_mb", {2, 9}, {"20", "21", "32", "64", "200"}},
    {"roundup_power2_divisions", {2, 9}, {"1", "4", "8", "[1:2,16:8,>:4]", "[64:1,256:4]"}},
    {"garbage_collection_threshold", {2, 9}, {"0.3", "0.6", "0.9"}},
    {"max_non_split_rounding_mb", {2, 9}, {"20", "40", "100"}},
    {"per_process_memory_fraction", {2, 10}, {"0.3", "0.5", "0.9", "1.0"}},
    {"large_segment_size_mb", {2, 11}, {"12", "16", "20", "40"}},
    {"throw_on_cudamalloc_oom", {2, 12}, {"True", "False"}},
    {"expandable_segments_reserve", {2, 15}, {"0.1", "0.3", "0.5", "1G", "0.1G"}},
};

// Returns random settings for the program's start or, if `are_later`, for a change while the
// program runs. A change leaves out max_split_size_mb, because PyTorch returns pieces of segments
// to the driver when this setting shrinks.
std::string random_settings(Choices& choices, TorchVersion version, bool are_later = false) {
  std::string text;
  for (const Setting& setting : kSettings) {
    if (version < setting.since || !choices.happens(22)) continue;
    if (are_later && std::string_view(setting.key) == "max_split_size_mb") continue;
    text +=
        (text.empty() ? "" : ",") + std::string(setting.key) + ":" + choices.one_of(setting.values);
  }
  return text;
}

// --- sizes ---------------------------------------------------------------------------------------

Bytes random_size(Choices& choices, Bytes memory) {
  // Sizes at which a different rule of the allocator begins. The code below draws sizes at, near
  // and between them.
  static const std::vector<Bytes> kBounds = {
      512, 4096, 256 * kKiB, kMiB, 2 * kMiB, 10 * kMiB, 12 * kMiB, 16 * kMiB, 20 * kMiB, 32 * kMiB};
  const auto kind = choices.below(10);
  Bytes size = 0;
  if (kind < 3) {
    size = choices.one_of(kBounds) + choices.one_of(std::initializer_list<Bytes>{0, 0, 1, 512}) -
           choices.one_of(std::initializer_list<Bytes>{0, 0, 1, 511});
  } else if (kind < 5) {
    size = 1 + choices.below(kMiB);
  } else if (kind < 6) {
    size = kMiB + choices.below(10 * kMiB);
  } else if (kind < 7) {
    // A multiple of 2 MiB, because a memory limit may leave exactly such a size.
    size = 2 * kMiB * (1 + choices.below(std::min<Bytes>(memory / (8 * kMiB), 64)));
  } else {
    size = 1 + choices.below(choices.one_of(
                   std::initializer_list<Bytes>{memory / 32 + 1, memory / 8, memory / 3, memory}));
  }
  return std::max<Bytes>(size, 1);
}

// Draws a few usual sizes again and again, so that free blocks of equal size exist.
class Sizes {
 public:
  Sizes(Choices& choices, Bytes memory) : choices_(choices), memory_(memory) {
    for (Bytes& size : usual_) size = random_size(choices, memory);
  }
  Bytes next() {
    return choices_.happens(75) ? choices_.one_of(usual_) : random_size(choices_, memory_);
  }

 private:
  Choices& choices_;
  Bytes memory_;
  std::array<Bytes, 8> usual_{};
};

// --- operations ----------------------------------------------------------------------------------

constexpr std::uint64_t kMany = 1'000'000;

struct Weight {
  Verb verb;
  std::uint64_t weight;
};
// Weights of the operations; each program scales them at random.
constexpr std::array<Weight, 21> kWeights{{
    {Verb::malloc, 400},   {Verb::malloc_at, 8},  {Verb::free, 330},     {Verb::record, 60},
    {Verb::hold, 25},      {Verb::finish, 35},    {Verb::empty, 8},      {Verb::use, 8},
    {Verb::begin, 14},     {Verb::capture, 10},   {Verb::end, 30},       {Verb::release, 16},
    {Verb::use_on_oom, 8}, {Verb::no_split, 6},   {Verb::limit, 5},      {Verb::fault, 5},
    {Verb::heal, 5},       {Verb::reset_peak, 3}, {Verb::reset_sums, 3}, {Verb::snapshot, 6},
    {Verb::settings, 4},
}};

std::vector<Weight> weights_of_program(Choices& choices) {
  std::vector<Weight> weights(kWeights.begin(), kWeights.end());
  for (auto& [verb, weight] : weights) {
    if (verb == Verb::malloc || verb == Verb::free) continue;
    weight = weight * choices.one_of(std::initializer_list<std::uint64_t>{0, 0, 1, 2});
  }
  return weights;
}

Verb random_verb(Choices& choices, const std::vector<Weight>& weights) {
  std::uint64_t sum = 0;
  for (const Weight& each : weights) sum += each.weight;
  std::uint64_t place = choices.below(sum);
  for (const auto& [verb, weight] : weights) {
    if (place < weight) return verb;
    place -= weight;
  }
  return Verb::malloc;
}

Operation random_operation(Choices& choices, const std::vector<Weight>& weights, Sizes& sizes) {
  const Verb verb = random_verb(choices, weights);
  const auto stream = [&] { return choices.happens(60) ? 0 : choices.below(4); };
  switch (verb) {
    case Verb::malloc: return {verb, {sizes.next(), stream()}};
    case Verb::malloc_at: return {verb, {choices.below(kMany), choices.below(kMany), sizes.next()}};
    case Verb::free: return {verb, {choices.below(kMany)}};
    case Verb::record: return {verb, {choices.below(kMany), choices.below(4)}};
    case Verb::hold:
    case Verb::finish: return {verb, {choices.below(4)}};
    case Verb::empty: return {verb, {choices.happens(60) ? 0 : choices.below(4)}};
    case Verb::begin:
    case Verb::capture:
      return {verb, {choices.below(3), choices.happens(50) ? 0 : 1 + choices.below(4)}};
    case Verb::use_on_oom: return {verb, {choices.below(3), choices.below(4) > 0 ? 1u : 0u}};
    case Verb::limit: return {verb, {choices.happens(40) ? 1000 : choices.below(1001)}};
    case Verb::fault: return {verb, {choices.below(2), choices.below(4), 1 + choices.below(4)}};
    default: return {verb, {choices.below(3)}};
  }
}

}  // namespace

Program random_program(std::uint64_t seed, std::size_t operations, TorchVersion version) {
  Choices choices(seed);
  Program program;
  program.memory = choices.one_of(std::initializer_list<Bytes>{
      64 * kMiB, 150 * kMiB, 256 * kMiB, 515 * kMiB, kGiB, 8 * kGiB, 24 * kGiB});
  program.settings = random_settings(choices, version);
  for (auto count = choices.below(3); count > 0; --count) {
    program.later_settings.push_back(random_settings(choices, version, true));
  }
  const std::vector<Weight> weights = weights_of_program(choices);
  Sizes sizes(choices, program.memory);
  while (program.operations.size() < operations) {
    program.operations.push_back(random_operation(choices, weights, sizes));
  }
  return program;
}
