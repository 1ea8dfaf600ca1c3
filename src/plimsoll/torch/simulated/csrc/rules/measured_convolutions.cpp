#include "rules/measured_convolutions.h"

#include <map>
#include <mutex>
#include <set>

namespace plimsoll::simulated {
namespace {

// Numbers with an x between. A line has no height: `first` stands there.
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

struct State {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::map<std::string, Workspaces>> measured;
  std::set<std::string> noted;
};

State& state() {
  static auto* const all = new State;
  return *all;
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

void set_measured_workspaces(c10::DeviceIndex device, const char* words, const Workspaces& bytes) {
  const std::lock_guard lock(state().mutex);
  state().measured[device][words] = bytes;
}

void forget_measured_workspaces() {
  const std::lock_guard lock(state().mutex);
  state().measured.clear();
}

std::optional<std::uint64_t> measured_workspace(c10::DeviceIndex device, const std::string& words,
                                                Pass pass) {
  const std::lock_guard lock(state().mutex);
  const auto of_card = state().measured.find(device);
  if (of_card == state().measured.end()) return std::nullopt;
  const auto found = of_card->second.find(words);
  if (found == of_card->second.end()) return std::nullopt;
  const std::size_t place = pass == Pass::forward ? 0 : pass == Pass::input_gradient ? 1 : 2;
  return static_cast<std::uint64_t>(found->second[place]);
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
