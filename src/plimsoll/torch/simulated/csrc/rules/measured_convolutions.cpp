#include "rules/measured_convolutions.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace plimsoll::simulated {
namespace {

// Joins sizes with an "x". A 1-D convolution has a width but no height, so the text gets `first` as
// the height.
std::string sizes(at::IntArrayRef numbers, std::size_t dimensions, std::int64_t first) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i + dimensions == numbers.size() && dimensions == 1) {
      text += (text.empty() ? "" : "x") + std::to_string(first);
    }
    text += (text.empty() ? "" : "x") + std::to_string(numbers[i]);
  }
  return text;
}

using Key = std::pair<std::string, Pass>;
using ByWords = std::map<Key, Workspaces>;

struct State {
  std::mutex mutex;
  std::map<c10::DeviceIndex, ByWords> measured;
  std::set<std::string> noted;
  std::map<Key, std::uint64_t> numbers;
};

State& state() {
  static auto* const all = new State;
  return *all;
}

struct Row {
  const char* words;
  std::int32_t pass;
  std::int64_t first, largest, least, middle, most;
};

const ByWords& workspaces_of_h100() {
  static const auto* const all = [] {
    constexpr Row kRows[] = {
#include "cudnn_by_words.inc"
    };
    auto* const made = new ByWords;
    for (const Row& row : kRows) {
      made->insert({{row.words, static_cast<Pass>(row.pass)},
                    {row.first, row.largest, row.least, row.middle, row.most}});
    }
    return made;
  }();
  return *all;
}

UncertainMemory exactly(std::int64_t bytes) {
  UncertainMemory memory;
  memory.bytes = memory.least = memory.most = static_cast<std::uint64_t>(bytes);
  return memory;
}

// The caller holds the mutex of `state()`.
std::optional<UncertainMemory> find(const ByWords& measured, const Key& key, Plan plan) {
  const auto place = measured.find(key);
  if (place == measured.end()) return std::nullopt;
  const Workspaces& found = place->second;
  if ((plan == Plan::first ? found.first : found.largest) < 0) return std::nullopt;
  if (plan == Plan::first) return exactly(found.first);
  if (plan == Plan::largest) return exactly(found.largest);
  UncertainMemory memory = exactly(found.middle);
  memory.least = static_cast<std::uint64_t>(found.least);
  memory.most = static_cast<std::uint64_t>(found.most);
  if (found.first >= 0) {  // cuDNN's first plan is often the fastest one, so include its workspace
    memory.least = std::min(memory.least, static_cast<std::uint64_t>(found.first));
    memory.most = std::max(memory.most, static_cast<std::uint64_t>(found.first));
  }
  // On a real GPU, all requests with the same `kind` take the same size. convolution_workspaces.cpp
  // numbers its kinds from 0. This file numbers its kinds from 2^40, so the files share no number.
  constexpr std::uint64_t kFirstKind = std::uint64_t{1} << 40;
  memory.kind = kFirstKind + state().numbers.try_emplace(key, state().numbers.size()).first->second;
  return memory;
}

}  // namespace

std::string in_words(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                     bool transposed, at::IntArrayRef output_padding, bool channels_last) {
  const auto dimensions = static_cast<std::size_t>(input.dim() - 2);
  const auto type = input.scalar_type();
  std::string text = type == at::kBFloat16 ? "bfloat16"
                     : type == at::kHalf   ? "float16"
                     : type == at::kDouble ? "float64"
                     : type == at::kFloat  ? "float32"
                                           : c10::toString(type);
  if (channels_last) text += " channels_last";
  if (transposed) text += " transposed";
  text += " " + sizes(input.sizes(), dimensions, 1) + " by " +
          sizes(weight.sizes(), dimensions, 1) + " stride " + sizes(stride, dimensions, 1) +
          " padding " + sizes(padding, dimensions, 0) + " dilation " +
          sizes(dilation, dimensions, 1) + " groups " + std::to_string(groups);
  if (transposed) text += " output_padding " + sizes(output_padding, dimensions, 0);
  return text;
}

void set_measured_workspaces(c10::DeviceIndex device, const char* words, Pass pass,
                             const Workspaces& bytes) {
  const std::lock_guard lock(state().mutex);
  state().measured[device][{words, pass}] = bytes;
}

void forget_measured_workspaces() {
  const std::lock_guard lock(state().mutex);
  state().measured.clear();
}

std::optional<UncertainMemory> measured_on_card(c10::DeviceIndex device, const std::string& words,
                                                Pass pass, Plan plan) {
  const std::lock_guard lock(state().mutex);
  const auto of_card = state().measured.find(device);
  if (of_card == state().measured.end()) return std::nullopt;
  return find(of_card->second, {words, pass}, plan);
}

std::optional<UncertainMemory> measured_on_h100(const std::string& words, Pass pass, Plan plan) {
  const std::lock_guard lock(state().mutex);
  return find(workspaces_of_h100(), {words, pass}, plan);
}

void note_convolution(const std::string& words) {
  const std::lock_guard lock(state().mutex);
  state().noted.insert(words);
}

std::string noted_convolutions() {
  const std::lock_guard lock(state().mutex);
  std::string lines;
  for (const std::string& words : state().noted) lines += words + "\n";
  return lines;
}

}  // namespace plimsoll::simulated
