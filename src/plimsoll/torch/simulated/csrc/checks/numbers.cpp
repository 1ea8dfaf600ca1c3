// Checks numbers: probabilities, rates, ranges of random numbers, and the program's assertions.

#include <vector>

#include "checks/checks.h"
#include "device/tensors.h"
#include "device/virtual.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

constexpr Limits kChances{0, 1};
constexpr Limits kNotNegative{0, Description::kNone};
constexpr const char* kRange = "the range of a probability";

void loss_of_chances(const Call& call) {  // (self, target, ...)
  require_within(call.info().name, call.tensor(0), kChances, "a prediction", kRange);
  require_within(call.info().name, call.tensor(1), kChances, "a target", kRange);
}

// Calls a random operation with meta tensors, so that PyTorch checks its parameters as on a GPU.
void drawn(const Call& call) {
  torch::jit::Stack stack;
  for (const c10::IValue& argument : call.arguments()) {
    stack.push_back(argument.isGenerator() ? c10::IValue()
                                           : map_tensors(argument, [](const Tensor& tensor) {
                                               return tensor.defined() ? meta_like(tensor) : tensor;
                                             }));
  }
  call.op().callBoxed(&stack);
}

// Checks random_(self, from, to), random_(self, to), random_(self), randint(low, high, ...) and
// randint(high, ...).
void drawn_integers(const Call& call) {
  std::vector<std::int64_t> bounds;
  for (const c10::IValue& argument : call.arguments()) {
    if (argument.isInt() && bounds.size() < 2) bounds.push_back(argument.toInt());
    if (argument.isIntList()) break;
  }
  if (bounds.empty() || (call.op().schema().overload_name() == "from" && bounds.size() < 2)) return;
  if (bounds.size() == 1) bounds.insert(bounds.begin(), 0);
  TORCH_CHECK(bounds[0] < bounds[1],
              "random_ expects 'from' to be less than 'to', but got from=", bounds[0],
              " >= to=", bounds[1]);
}

void drawn_evenly(const Call& call) {  // uniform_(self, from, to)
  if (!call.info().is_in_place()) return;
  const double from = call.argument(1).toDouble();
  const double to = call.argument(2).toDouble();
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
}

void tossed(const Call& call) {  // bernoulli(self) with probabilities; bernoulli_(self, p)
  const bool is_filled = call.info().is_in_place() || call.argument_count() > 2;
  require_within(call.info().name, call.tensor(is_filled ? 1 : 0), kChances, "a probability",
                 kRange);
  if (!is_filled || !call.argument(1).isDouble()) return;
  const double p = call.argument(1).toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

void rates(const Call& call) {  // poisson(self)
  require_within(call.info().name, call.tensor(0), kNotNegative, "a rate", "the range of rates");
}

// Checks that the weights are finite and not negative, and that each row has a weight above zero.
void weights_of_choice(const Call& call) {  // multinomial(self, num_samples, replacement)
  const Tensor weights = call.tensor(0);
  require_within(call.info().name, weights, {0, std::numeric_limits<double>::max()}, "a weight",
                 "the range of weights");
  const Tensor values = known_values(weights);
  if (!values.defined() || values.numel() == 0) return;
  const WithContentsScope real;
  const Tensor sums = values.to(at::kDouble).sum(-1);
  if (sums.eq(0).any().item<bool>()) fail_device(call.info().name, "all weights of a row are 0");
}

void asserted(const Call& call) {  // (self) or (self, assert_msg)
  const Tensor values = known_values(call.tensor(0));
  if (!values.defined()) {
    runtime().assume(call.info().name, kUndecidedCheck);
    return;
  }
  const WithContentsScope real;
  if (values.numel() == 0 || values.ne(0).all().item<bool>()) return;
  const bool has_text = call.argument_count() > 1 && call.argument(1).isString();
  fail_device(call.info().name,
              has_text ? "the program asserts: " + std::string(call.argument(1).toStringRef())
                       : "the program asserts what does not hold");
}

// Checks histc(self, bins, min, max). If min equals max, the kernel uses the data's own bounds.
void binned(const Call& call) {
  const double low = call.argument(2).toScalar().toDouble();
  const double high = call.argument(3).toScalar().toDouble();
  TORCH_CHECK(low <= high, "max must be larger than min");
  if (low != high) return;
  constexpr double kMost = std::numeric_limits<double>::max();
  const auto infinite = find_outside(call.info().name, call.tensor(0), {-kMost, kMost});
  TORCH_CHECK(!infinite, "range of [", *infinite, ", ", *infinite, "] is not finite");
}

// Checks normal(mean, std), with tensors or with a number, and normal_(self, mean, std).
void deviations(const Call& call) {
  if (call.info().is_in_place()) return drawn(call);
  const auto place = call.op().schema().argumentIndexWithName("std");
  if (!place || !call.argument(static_cast<std::size_t>(*place)).isTensor()) return;
  const auto negative =
      find_outside(call.info().name, call.tensor(static_cast<std::size_t>(*place)), kNotNegative);
  TORCH_CHECK(!negative, "normal expects all elements of std >= 0.0");
}

const CheckTable kNumberChecks{
    {"binary_cross_entropy", loss_of_chances},
    {"bernoulli", tossed},
    {"poisson", rates},
    {"multinomial", weights_of_choice},
    {"_assert_async", asserted},
    {"histc", binned},
    {"normal", deviations},
    {"random", drawn_integers},
    {"randint", drawn_integers},
    {"uniform", drawn_evenly},
    {"exponential", drawn},
    {"geometric", drawn},
    {"cauchy", drawn},
    {"log_normal", drawn},
};

}  // namespace
}  // namespace plimsoll::simulated
