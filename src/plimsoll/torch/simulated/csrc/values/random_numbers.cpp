#include "values/random_numbers.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <string>

#include "device/generator.h"
#include "device/tensors.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Returns block `number` of a thread's subsequence: four random 32-bit numbers.
Block philox(std::uint64_t seed, std::uint64_t number, std::uint64_t thread) {
  constexpr std::uint64_t kFirst = 0xD2511F53, kSecond = 0xCD9E8D57;
  constexpr std::uint32_t kFirstKey = 0x9E3779B9, kSecondKey = 0xBB67AE85;
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  Block counter{low(number), high(number), low(thread), high(thread)};
  std::uint32_t key = low(seed), other_key = high(seed);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t one = kFirst * counter[0];
    const std::uint64_t two = kSecond * counter[2];
    counter = {high(two) ^ counter[1] ^ key, low(two), high(one) ^ counter[3] ^ other_key,
               low(one)};
    key += kFirstKey;
    other_key += kSecondKey;
  }
  return counter;
}

// Converts random bits to a number in (0, 1], as CUDA's kernels do.
float unit(std::uint32_t bits) { return static_cast<float>(bits) * 0x1p-32F + 0x1p-33F; }
double unit(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bits = low ^ (static_cast<std::uint64_t>(high) << 21);
  return static_cast<double>(bits) * 0x1p-53 + 0x1p-54;
}
std::uint64_t joined(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// The launch of a kernel that fills memory: its threads, and how many numbers each draws at a time.
struct Launch {
  static constexpr std::uint64_t kThreads = 256;  // per block
  std::uint64_t stride = 0;                       // threads of all blocks together
  std::uint64_t at_a_time = 4;

  Launch(const DeviceProperties& on, std::uint64_t count, std::uint64_t taken) : at_a_time(taken) {
    const std::uint64_t blocks = (count + kThreads - 1) / kThreads;
    const auto resident =
        static_cast<std::uint64_t>(on.multiprocessors) *
        (static_cast<std::uint64_t>(on.max_threads_per_multiprocessor) / kThreads);
    stride = kThreads * std::min(blocks, resident);
  }
  // Returns by how much the kernel advances the generator's offset.
  [[nodiscard]] std::uint64_t offset(std::uint64_t count) const {
    return ((count - 1) / (stride * at_a_time) + 1) * 4;
  }
};

// Calls `each` once for every element, with the element's index, a block of random bits, and a
// number `i`. `at_a_time` elements share a block. `i` counts these elements from 0.
template <typename Each>
void for_elements(const Call& call, const RandomState& state, std::int64_t count,
                  std::uint64_t at_a_time, Each each) {
  const Launch launch(call.properties(), static_cast<std::uint64_t>(count), at_a_time);
  const std::uint64_t first = state.offset / 4;
  for (std::uint64_t thread = 0; thread < launch.stride; ++thread) {
    for (std::uint64_t round = 0;; ++round) {
      std::uint64_t element = thread + round * at_a_time * launch.stride;
      if (element >= static_cast<std::uint64_t>(count)) break;
      const Block bits = philox(state.seed, first + round, thread);
      for (std::uint64_t i = 0; i < at_a_time && element < static_cast<std::uint64_t>(count);
           ++i, element += launch.stride) {
        each(element, bits, i);
      }
    }
  }
}

double number(const Call& call, std::size_t argument) {
  return call.argument(argument).toScalar().toDouble();
}

template <typename Scalar>
void fill_uniform(const Call& call, const RandomState& state, const at::Tensor& values) {
  auto* const to = static_cast<Scalar*>(values.mutable_data_ptr());
  const auto low = static_cast<Scalar>(number(call, 1));
  const auto high = static_cast<Scalar>(number(call, 2));
  const auto in_range = [&](Scalar value) { return value == high ? low : value; };
  if constexpr (std::is_same_v<Scalar, double>) {
    for_elements(call, state, values.numel(), 2, [&](auto at, const Block& bits, auto i) {
      to[at] = in_range(unit(bits[2 * i], bits[2 * i + 1]) * (high - low) + low);
    });
  } else {
    const auto from = static_cast<float>(low);
    const auto range = static_cast<float>(static_cast<Scalar>(high - low));
    for_elements(call, state, values.numel(), 4, [&](auto at, const Block& bits, auto i) {
      to[at] = in_range(static_cast<Scalar>(unit(bits[i]) * range + from));
    });
  }
}

template <typename Scalar>
void fill_normal(const Call& call, const RandomState& state, const at::Tensor& values) {
  auto* const to = static_cast<Scalar*>(values.mutable_data_ptr());
  const double mean = number(call, 1);
  const double deviation = number(call, 2);
  constexpr float kTurn = 0x1p-32F * 6.2831855F;
  for_elements(call, state, values.numel(), 4, [&](auto at, const Block& bits, auto i) {
    const std::uint64_t pair = i / 2 * 2;  // the Box-Muller transform makes two numbers at a time
    const float radius = std::sqrt(-2 * std::log(unit(bits[pair])));
    const float angle = static_cast<float>(bits[pair + 1]) * kTurn + kTurn / 2;
    const float drawn = radius * (i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    to[at] = static_cast<Scalar>(drawn * static_cast<float>(deviation) + static_cast<float>(mean));
  });
}

// For ranges of at least this size, kernels use 64 random bits for a number.
constexpr std::uint64_t kWide = std::uint64_t{1} << 28;

struct Range {
  std::int64_t low = 0;
  std::uint64_t size = 0;
};

// Returns the range of random_(from, to) or random_(to); none for random_(), which draws from the
// type's whole range.
std::optional<Range> range_of(const Call& call) {
  const bool has_both = call.argument_count() == 4;
  const c10::IValue& last = call.argument(has_both ? 2 : 1);
  if (call.argument_count() < 3 || !last.isInt()) return std::nullopt;
  const std::int64_t low = has_both ? call.argument(1).toInt() : 0;
  return Range{low, static_cast<std::uint64_t>(last.toInt()) - static_cast<std::uint64_t>(low)};
}

template <typename Scalar>
void fill_integers(const Call& call, const RandomState& state, const at::Tensor& values,
                   const Range& range) {
  auto* const to = static_cast<Scalar*>(values.mutable_data_ptr());
  const auto put = [&](std::uint64_t at, std::uint64_t bits) {
    to[at] = static_cast<Scalar>(static_cast<std::int64_t>(bits % range.size) + range.low);
  };
  if (range.size >= kWide) {
    for_elements(call, state, values.numel(), 2, [&](auto at, const Block& bits, auto i) {
      put(at, joined(bits[2 * i], bits[2 * i + 1]));
    });
  } else {
    for_elements(call, state, values.numel(), 4,
                 [&](auto at, const Block& bits, auto i) { put(at, bits[i]); });
  }
}

// Fills a tensor for bernoulli_(p), where all elements have one probability.
void fill_tosses(const Call& call, const RandomState& state, const at::Tensor& values) {
  const at::Tensor drawn = at::empty({values.numel()}, at::TensorOptions().dtype(at::kFloat));
  auto* const to = drawn.mutable_data_ptr<float>();
  const auto chance = static_cast<float>(number(call, 1));
  for_elements(call, state, values.numel(), 4, [&](auto at, const Block& bits, auto i) {
    to[at] = unit(bits[i]) < chance ? 1 : 0;
  });
  values.view({-1}).copy_(drawn);
}

// Fills a tensor for bernoulli_(probabilities). Each thread draws four consecutive elements.
void fill_tosses_by(const RandomState& state, const at::Tensor& values, const at::Tensor& chances) {
  const at::Tensor drawn = at::empty({values.numel()}, at::TensorOptions().dtype(at::kFloat));
  auto* const to = drawn.mutable_data_ptr<float>();
  const at::Tensor numbers = chances.expand_as(values).to(at::kFloat).contiguous();
  const auto* const chance = numbers.const_data_ptr<float>();
  for (std::int64_t at = 0; at < values.numel(); at += 4) {
    const Block bits = philox(state.seed, state.offset / 4, static_cast<std::uint64_t>(at) / 4);
    for (std::int64_t i = at; i < std::min(at + 4, values.numel()); ++i) {
      to[i] = unit(bits[static_cast<std::size_t>(i - at)]) <= chance[i] ? 1 : 0;
    }
  }
  values.view({-1}).copy_(drawn);
}

std::uint64_t up_to_four(std::uint64_t count) { return (count + 3) / 4 * 4; }

// Returns by how much a call's kernels advance the generator's offset.
std::uint64_t offset_of(const Call& call) {
  // For bernoulli_(probabilities), PyTorch asks for ten numbers. The generator rounds this count up
  // to a multiple of four.
  constexpr std::uint64_t kByChances = 12;
  const std::string& name = call.info().plain_name;
  const bool has_one = !call.results().empty() && call.results()[0].isTensor();
  const at::Tensor filled = has_one ? call.results()[0].toTensor() : at::Tensor();
  if (!filled.defined() || filled.numel() == 0) return 0;
  if (name == "bernoulli_" && call.argument(1).isTensor()) return kByChances;
  const auto count = static_cast<std::uint64_t>(filled.numel());
  const std::optional<Range> range = name == "random_" ? range_of(call) : std::nullopt;
  const bool is_wide = filled.scalar_type() == at::kDouble || (range && range->size >= kWide);
  const std::uint64_t drawn = Launch(call.properties(), count, is_wide ? 2 : 4).offset(count);
  // randperm draws a key for each element, and then new keys for elements with equal keys.
  return name == "randperm" ? drawn + up_to_four(count) : drawn;
}

}  // namespace

RandomState take_random_state(const Call& call) {
  at::Generator generator =
      at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CUDA, call.device()));
  for (const c10::IValue& argument : call.arguments()) {
    if (argument.isGenerator() && argument.toGenerator().defined()) {
      generator = argument.toGenerator();
    }
  }
  TORCH_CHECK(generator.device().is_cuda(),
              "Expected a 'cuda' device type for generator but found '",
              c10::DeviceTypeName(generator.device().type(), /*lower_case=*/true), "'");
  const std::lock_guard lock(generator.mutex());
  const RandomState state{generator.current_seed(), generator.get_offset(),
                          has_chosen_seed(generator)};
  generator.set_offset(state.offset + offset_of(call));
  return state;
}

bool draw_as_a_gpu(const Call& call, const RandomState& state, const at::Tensor& values) {
  if (!state.is_known || !values.is_contiguous()) return false;
  const std::string& name = call.info().plain_name;
  const at::ScalarType type = values.scalar_type();
  if (name == "uniform_" || name == "normal_") {
    const bool is_uniform = name == "uniform_";
    switch (type) {
      case at::kFloat:
        is_uniform ? fill_uniform<float>(call, state, values)
                   : fill_normal<float>(call, state, values);
        return true;
      case at::kHalf:
        is_uniform ? fill_uniform<c10::Half>(call, state, values)
                   : fill_normal<c10::Half>(call, state, values);
        return true;
      case at::kBFloat16:
        is_uniform ? fill_uniform<c10::BFloat16>(call, state, values)
                   : fill_normal<c10::BFloat16>(call, state, values);
        return true;
      case at::kDouble:
        if (is_uniform) fill_uniform<double>(call, state, values);
        return is_uniform;
      default: return false;
    }
  }
  if (name == "random_") {
    const std::optional<Range> range = range_of(call);
    if (!range || range->size == 0) return false;
    switch (type) {
      case at::kLong: fill_integers<std::int64_t>(call, state, values, *range); return true;
      case at::kInt: fill_integers<std::int32_t>(call, state, values, *range); return true;
      case at::kFloat: fill_integers<float>(call, state, values, *range); return true;
      case at::kByte: fill_integers<std::uint8_t>(call, state, values, *range); return true;
      default: return false;
    }
  }
  if (name != "bernoulli_") return false;
  if (!call.argument(1).isTensor()) {
    if (type == at::kDouble) return false;
    fill_tosses(call, state, values);
    return true;
  }
  const at::Tensor chances = call.tensor(1);
  const at::Tensor read = is_simulated(chances) ? read_values(chances) : chances;
  if (!read.defined()) return false;
  fill_tosses_by(state, values, read);
  return true;
}

}  // namespace plimsoll::simulated
