#include "values/host_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "chips/torch_rules.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

// In the whole run, plimsoll draws at most this many numbers to advance host generators. Drawing
// them takes some seconds.
constexpr std::uint64_t kMostNumbers = std::uint64_t{1} << 32;

// Returns how many 32-bit numbers PyTorch's CPU kernel takes from the generator
// (ATen/native/cpu/DistributionTemplates.h). The kernel makes normal numbers in groups of sixteen.
// If the last group is incomplete, the kernel first fills this group and then draws the tensor's
// last sixteen values again. Since PyTorch 2.13, the kernel for half precision no longer fills the
// incomplete group; it only draws the last sixteen values.
std::optional<std::uint64_t> numbers_taken(const Call& call) {
  const std::string& name = call.info().plain_name;
  const at::Tensor target = call.tensor(0);
  const auto count = static_cast<std::uint64_t>(target.numel());
  const std::uint64_t each = target.scalar_type() == at::kDouble ? 2 : 1;
  if (name == "uniform_") return each * count;
  if (name != "normal_" || count < 16 || !target.is_contiguous()) return std::nullopt;
  const std::uint64_t left_over = count % 16;
  const bool is_drawn_once =
      torch_rules().draws_halves_once() && at::isReducedFloatingType(target.scalar_type());
  return each * (count - (is_drawn_once ? left_over : 0) + (left_over == 0 ? 0 : 16));
}

at::Generator generator_of(const Call& call) {
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (call.argument(i).isGenerator()) return call.argument(i).toGenerator();
  }
  return at::detail::getDefaultCPUGenerator();
}

}  // namespace

void pass_host_numbers(const Call& call) {
  static std::atomic<std::uint64_t> passed = 0;
  const auto numbers = numbers_taken(call);
  if (!numbers || (passed += *numbers) > kMostNumbers) {
    runtime().assume(call.info().name,
                     "the host's random numbers after this call differ from those of a real run");
    return;
  }
  const at::Generator generator = generator_of(call);
  auto* const state = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard lock(state->mutex_);
  at::mt19937 engine = state->engine();
  for (std::uint64_t i = 0; i < *numbers; ++i) engine();
  state->set_engine(engine);
}

}  // namespace plimsoll::simulated
