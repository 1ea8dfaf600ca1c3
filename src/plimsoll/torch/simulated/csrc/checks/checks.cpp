#include "checks/checks.h"

#include <ATen/ops/aminmax.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "device/tensors.h"
#include "device/virtual.h"
#include "values/chances.h"
#include "values/known.h"
#include "values/reading.h"

namespace plimsoll::simulated {
namespace {

constexpr int kAssertFailed = 710;  // cudaErrorAssert
// If random draws are expected to give this many hits, the chance of no hit is below 1e-9.
constexpr double kSureHits = 21;

bool is_within(double number, const Limits& limits) {
  if (limits.except && number == static_cast<double>(*limits.except)) return true;
  return number >= limits.low && number <= limits.high;
}

std::optional<double> find_in_values(const at::Tensor& values, const Limits& limits) {
  const WithContentsScope real;
  if (values.numel() == 0) return std::nullopt;
  const bool is_integer = c10::isIntegralType(values.scalar_type(), /*includeBool=*/true);
  const at::Tensor numbers = is_integer ? values : values.to(at::kDouble);
  const auto [least, most] = at::aminmax(numbers);
  const double low = least.item<double>();
  const double high = most.item<double>();
  // If any number is NaN, `low` and `high` are NaN, and the condition is false.
  if (low >= limits.low && high <= limits.high) return std::nullopt;
  const at::Tensor flat = numbers.to(at::kDouble).reshape({-1});
  const auto* const each = flat.const_data_ptr<double>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (!is_within(each[i], limits)) return each[i];
  }
  return std::nullopt;
}

// `of` describes numbers that plimsoll did not compute, for example by their range. If one of these
// numbers is certainly outside the limits, returns a bound of their range that is outside the
// limits.
std::optional<double> find_surely_outside(const Description& of, const Limits& limits,
                                          std::int64_t count) {
  if (of.low > limits.high || of.high < limits.low) {
    const double bound = of.low > limits.high ? of.low : of.high;
    if (!limits.except || !is_within(static_cast<double>(*limits.except), {of.low, of.high})) {
      return bound;
    }
  }
  if (of.reaches_bounds) {
    if (!is_within(of.high, limits)) return of.high;
    if (!is_within(of.low, limits)) return of.low;
  }
  if (!of.is_random() || limits.except) return std::nullopt;
  const Chance below = chance_of_less(of, Description::constant(limits.low), false, of.is_whole);
  const Chance within = chance_of_less(of, Description::constant(limits.high), true, of.is_whole);
  const auto draws = static_cast<double>(count);
  if ((1 - within.share) * draws > kSureHits) return of.high;
  if (below.share * draws > kSureHits) return of.low;
  return std::nullopt;
}

[[noreturn]] void fail_with(const std::string& text) {
  runtime().fail(text);
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kAssertFailed,
                              std::string(kDeviceAssert) + "\n" + text +
                                  "\nplimsoll raises this at the call that fails; a GPU raises it "
                                  "at a later call, unless CUDA_LAUNCH_BLOCKING is 1");
}

// Returns the tensor's known values, if any, for checks that plimsoll's Python code makes.
std::optional<at::Tensor> known_or_none(const at::Tensor& tensor) {
  const at::Tensor values = known_values(tensor);
  return values.defined() ? std::optional(values) : std::nullopt;
}
void fail_check(c10::string_view why) { fail_with(std::string(why)); }

}  // namespace

void add_checks(WrittenOut& kernels) {
  define("known_values(Tensor tensor) -> Tensor?", TORCH_FN(known_or_none));
  define("fail_check(str why) -> ()", TORCH_FN(fail_check));
}

std::string number_text(double number) {
  std::array<char, 40> text{};
  const bool is_whole =
      std::isfinite(number) && number == std::trunc(number) && std::abs(number) < 1e18;
  std::snprintf(text.data(), text.size(), is_whole ? "%.0f" : "%g", number);
  return text.data();
}

at::Tensor known_values(const at::Tensor& tensor) {
  if (!tensor.defined() || is_virtual(tensor)) return {};
  if (!is_simulated(tensor)) return tensor.is_cpu() ? tensor : at::Tensor();
  if (source_of(tensor) > Source::random || !can_be_read(tensor)) return {};
  return read_values(tensor);
}

std::optional<double> find_outside(std::uint32_t operation, const at::Tensor& tensor,
                                   const Limits& limits) {
  if (!tensor.defined() || tensor.numel() == 0 || tensor.is_complex()) return std::nullopt;
  if (const at::Tensor values = known_values(tensor); values.defined()) {
    return find_in_values(values, limits);
  }
  if (!is_simulated(tensor)) return std::nullopt;
  const Known known = known_of(tensor);
  const Description& of = known.description;
  if (known.source == Source::described) {
    const auto outside = find_surely_outside(of, limits, tensor.numel());
    if (outside) return outside;
    const bool may_be_outside = (std::isfinite(of.low) && of.low < limits.low) ||
                                (std::isfinite(of.high) && of.high > limits.high);
    if (may_be_outside && !limits.except) runtime().assume(operation, kUndecidedCheck);
    return std::nullopt;
  }
  const at::Tensor made_up = can_be_read(tensor) ? read_values(tensor) : at::Tensor();
  if (made_up.defined() && find_in_values(made_up, limits)) {
    runtime().assume(operation, kUndecidedCheck);
  }
  return std::nullopt;
}

void fail_device(std::uint32_t operation, const std::string& why) {
  fail_with(why + " (" + runtime().name_at(operation) + ")");
}

void require_within(std::uint32_t operation, const at::Tensor& tensor, const Limits& limits,
                    const char* what, const std::string& of) {
  const auto outside = find_outside(operation, tensor, limits);
  if (!outside) return;
  fail_device(operation, std::string(what) + " is " + number_text(*outside) + ", outside " + of +
                             ": " + number_text(limits.low) + " to " + number_text(limits.high) +
                             (limits.except ? ", or " + std::to_string(*limits.except) : ""));
}

void check_data(const Call& call) {
  std::string_view name = call.info().plain_name;
  if (name.ends_with('_')) name.remove_suffix(1);
  const CheckRow* const row = CheckTable::find(name);
  // If a graph is being captured, the kernel runs later and on other data, so it is not checked
  // now.
  if (row != nullptr && runtime().current_capture(call.device()) == 0) row->check(call);
}

}  // namespace plimsoll::simulated
