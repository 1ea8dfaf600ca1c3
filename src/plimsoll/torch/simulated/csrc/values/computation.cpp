#include "values/computation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "device/memory.h"
#include "device/tensors.h"
#include "device/virtual.h"
#include "values/budget.h"
#include "values/describe.h"
#include "values/known.h"
#include "values/random_numbers.h"
#include "values/substitutes.h"

namespace plimsoll::simulated {
namespace {

// Seeds the host's default generator, the only generator that some operations accept. Restores its
// state at the end, so that the program's later random numbers do not change.
class HostSeedScope {
 public:
  explicit HostSeedScope(std::uint64_t seed)
      : turn_(turns()), generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    saved_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~HostSeedScope() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(saved_);
  }
  HostSeedScope(const HostSeedScope&) = delete;
  HostSeedScope& operator=(const HostSeedScope&) = delete;

 private:
  // Only one thread at a time may reseed the generator. The generator's own mutex cannot serve,
  // because kernels lock it for each draw.
  static std::mutex& turns() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }

  std::lock_guard<std::mutex> turn_;
  at::Generator generator_;
  at::Tensor saved_;
};

struct Arguments {
  bool can_be_read = false;
  Source worst = Source::computed;  // the least certain source of all arguments that are read
  bool reads_device = false;        // whether the call reads a device tensor
};

// Returns whether an operation like addmv has beta = 0 and so does not read the added operand.
bool adds_to_nothing(const Call& call) {
  const std::optional<int> beta = call.op().schema().argumentIndexWithName("beta");
  if (!beta) return false;
  const c10::IValue& value = call.argument(static_cast<std::size_t>(*beta));
  return value.isScalar() && value.toScalar().equal(0);
}

Arguments look_at_arguments(const Call& call) {
  const OperationInfo& info = call.info();
  Arguments arguments{true, Source::computed};
  bool any_device = false;
  for (std::size_t i = 0; i < call.argument_count() && arguments.can_be_read; ++i) {
    const bool is_overwritten =
        (info.has(kOverwrites) && info.is_written[i]) || (i == 0 && adds_to_nothing(call));
    for_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (is_virtual(tensor)) arguments.can_be_read = false;
      if (!is_simulated(tensor) || !arguments.can_be_read) return;
      any_device = true;
      if (is_overwritten) return;
      arguments.reads_device = true;
      arguments.can_be_read = can_be_read(tensor);
      arguments.worst = std::max(arguments.worst, source_of(tensor));
    });
  }
  if (!any_device && !call.inputs().empty()) arguments.can_be_read = false;
  return arguments;
}

// Returns whether an argument is a running mean or variance that the call updates. In training,
// batch normalization updates both, although its schema does not say so.
bool is_running_statistic(const Call& call, std::size_t argument) {
  const auto& arguments = call.op().schema().arguments();
  if (!arguments[argument].name().starts_with("running_")) return false;
  for (const char* const name : {"training", "train"}) {
    const std::optional<int> place = call.op().schema().argumentIndexWithName(name);
    if (!place) continue;
    const c10::IValue& is_training = call.argument(static_cast<std::size_t>(*place));
    if (is_training.isBool()) return is_training.toBool();
  }
  return false;
}

// Returns the device tensors that the call writes; none if a result is a view, which shares its
// base's values.
std::optional<std::vector<Written>> find_written(const Call& call) {
  const OperationInfo& info = call.info();
  std::vector<Written> written;
  std::size_t result = 0;
  std::size_t element = 0;
  const auto note = [&](const at::Tensor& tensor) {
    if (is_simulated(tensor) && tensor.numel() != 0 && allocation_of(tensor) != nullptr) {
      written.push_back({tensor, result, element});
    }
    ++element;
  };
  const auto is_argument = [&](const c10::IValue& value) {  // a result that is one of the arguments
    return value.isTensor() &&
           std::any_of(call.inputs().begin(), call.inputs().end(),
                       [&](const at::Tensor& each) { return each.is_same(value.toTensor()); });
  };
  for (; result < info.results.size(); ++result, element = 0) {
    if (info.results[result].kind == Result::Kind::view) return std::nullopt;
    if (info.results[result].kind == Result::Kind::fresh && !is_argument(call.results()[result])) {
      for_tensors(call.results()[result], note);
    }
  }
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (!info.is_written[i] && !is_running_statistic(call, i)) continue;
    result = info.is_written[i] ? 0 : kNoResult;
    for (std::size_t r = 0; r < info.results.size(); ++r) {
      if (info.results[r].kind == Result::Kind::argument && info.results[r].argument == i)
        result = r;
    }
    element = 0;
    for_tensors(call.argument(i), note);
  }
  return written;
}

// The host's costs of one element, in the unit of cost_of. kPerDrawnElement is for operations that
// draw random numbers. kPerElement is for all other operations, which are limited by memory.
constexpr double kPerElement = 16;
constexpr double kPerDrawnElement = 100;
// The host's time to multiply in half precision, divided by its time in single precision.
constexpr double kHalfFactor = 16;

// Returns the number of floating-point operations of a multiplication. Returns 0 for attention and
// recurrent layers, because cost_of counts only their elements.
double flops_of(const Multiplication& of) {
  if (const auto* const product = std::get_if<Product>(&of)) return product->flops();
  const auto* const work = std::get_if<ConvolutionWork>(&of);
  if (work == nullptr) return 0;
  return 2 * work->outputs * work->out_channels * work->taps * work->channels / work->groups;
}

// Returns the host's cost of computing a call, in units of a multiplication in single precision.
double cost_of(const Call& call) {
  double elements = 0;
  bool is_half = false;
  const auto count = [&](const at::Tensor& tensor) {
    if (is_simulated(tensor)) {
      elements += static_cast<double>(tensor.numel());
      is_half = is_half || c10::isReducedFloatingType(tensor.scalar_type());
    }
  };
  for (const at::Tensor& tensor : call.inputs()) count(tensor);
  for (const c10::IValue& result : call.results()) for_tensors(result, count);
  double flops = 0;
  for (const Multiplication& each : call.multiplications()) flops += flops_of(each);
  if (is_half) flops *= kHalfFactor;
  return flops + elements * (call.info().is_random ? kPerDrawnElement : kPerElement);
}

// Returns whether to compute the call's results. If all tensors of the call are small, the answer
// is always yes. Otherwise the budget must have room. If the values of an operand are less certain
// than Source::random, all results must also be integers. Integers are worth the work, because
// tensor sizes may depend on them. Floating-point results of uncertain operands would be no better
// than a description.
bool is_worth_it(const Call& call, const Arguments& arguments,
                 const std::vector<Written>& written) {
  const auto is_small = [](const at::Tensor& tensor) {
    const Allocation* const allocation = allocation_of(tensor);
    return allocation == nullptr || are_few(allocation->size, tensor.scalar_type());
  };
  const auto is_small_result = [&](const Written& each) { return is_small(each.tensor); };
  const bool are_small = std::all_of(written.begin(), written.end(), is_small_result) &&
                         std::all_of(call.inputs().begin(), call.inputs().end(), is_small);
  if (are_small) return true;
  const bool are_integers = std::all_of(written.begin(), written.end(), [](const Written& each) {
    return c10::isIntegralType(each.tensor.scalar_type(), /*includeBool=*/true);
  });
  if (arguments.worst > Source::random && !are_integers) return false;
  std::size_t bytes = 0;
  for (const Written& each : written) bytes += allocation_of(each.tensor)->size;
  Budget& budget = Budget::instance();
  const bool has_room = budget.has_bytes(bytes) && budget.take_operations(cost_of(call));
  if (!has_room) runtime().assume(call.info().name, kBeyondBudget);
  return has_room;
}

// Returns the call's arguments as host tensors; none if the budget has no room. If the call writes
// a tensor, the host tensor shares memory with the values that plimsoll keeps.
std::optional<torch::jit::Stack> arguments_on_host(const Call& call) {
  const OperationInfo& info = call.info();
  torch::jit::Stack values;
  bool has_room = true;
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    const c10::IValue& argument = call.argument(i);
    if (argument.isDevice()) {
      values.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else if (argument.isGenerator()) {
      values.emplace_back();
    } else {
      values.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
        if (!is_simulated(tensor)) return tensor;
        const bool is_written = info.is_written[i] || is_running_statistic(call, i);
        const at::Tensor value =
            is_written ? writable_values(tensor, info.has(kOverwrites)) : read_values(tensor);
        has_room = has_room && value.defined();
        return value;
      }));
    }
  }
  if (!has_room) return std::nullopt;
  return values;
}

// Says how a computation on the host ended. If a CPU kernel throws an exception, plimsoll drops the
// exception and leaves the values unknown, because a GPU kernel may accept data that a CPU kernel
// refuses. The code in checks/ has already decided whether a GPU would refuse the data.
enum class Outcome : std::uint8_t { computed, not_computed };

// Runs the operation on the host. Returns not_computed if the CPU lacks the kernel or refuses the
// data, or the budget has no room.
Outcome run_on_host(const Call& call, std::uint64_t seed) {
  try {
    std::optional<torch::jit::Stack> values = arguments_on_host(call);
    if (!values) return Outcome::not_computed;
    {
      const c10::impl::ExcludeDispatchKeyGuard as_it_is(c10::autocast_dispatch_keyset);
      std::optional<HostSeedScope> scope;
      if (call.info().is_random) scope.emplace(seed);
      if (const Substitute substitute = find_substitute(call)) {
        substitute(call, *values);
      } else {
        call.op().callBoxed(&*values);
      }
    }
    for (std::size_t i = 0; i < call.results().size(); ++i) {
      if (call.info().results[i].kind != Result::Kind::fresh) continue;
      std::vector<at::Tensor> computed;
      for_tensors((*values)[i], [&](const at::Tensor& tensor) { computed.push_back(tensor); });
      std::size_t place = 0;
      bool has_room = true;
      for_tensors(call.results()[i], [&](const at::Tensor& tensor) {
        const at::Tensor& value = computed.at(place++);
        if (is_simulated(tensor) && value.defined() && value.sizes() == tensor.sizes()) {
          const at::Tensor to = writable_values(tensor, true);
          has_room = has_room && to.defined();
          if (to.defined()) to.copy_(value);
        }
      });
      if (!has_room) return Outcome::not_computed;
    }
  } catch (const std::exception&) {
    return Outcome::not_computed;
  }
  return Outcome::computed;
}

// Describes each tensor that the call writes. This has to happen before any of them is written.
std::vector<Known> describe(const Call& call, const std::vector<Written>& written) {
  std::vector<Known> known;
  known.reserve(written.size());
  for (const Written& each : written) known.push_back(describe_written(call, each));
  return known;
}

void note(const std::vector<Written>& written, const std::vector<Known>& known) {
  for (std::size_t i = 0; i < written.size(); ++i) note_same(written[i].tensor, known[i]);
}

// Returns a seed for a host generator, which uses only the lower 32 bits.
std::uint64_t seed_of(const RandomState& random) {
  const std::uint64_t mixed = random.seed ^ (random.offset * 0x9E3779B97F4A7C15U);
  return mixed ^ (mixed >> 32);
}

// Fills a tensor in place with the numbers that a GPU would draw. Returns false if they are
// unknown.
bool draw(const Call& call, const RandomState& random) {
  if (!call.info().is_in_place() || !is_simulated(call.tensor(0))) return false;
  const at::Tensor values = writable_values(call.tensor(0), true);
  return values.defined() && draw_as_a_gpu(call, random, values);
}

// Returns whether the description of each result allows only one number, as for x - x = 0. The
// number is right only if all operands are finite, as they are in a healthy run.
bool are_constant(const std::vector<Known>& known) {
  return std::all_of(known.begin(), known.end(),
                     [](const Known& each) { return each.description.is_constant(); });
}

// Sets `found_inf`, the flag by which a gradient scaler learns that a gradient is infinite. In a
// healthy run gradients are finite, so the flag stays as it is. With Unknown::least, gradients
// overflow as long as the scale is above kOverflowingScale. PyTorch's scaler begins with the scale
// 2^16, so it then skips three optimizer steps.
void find_finite(const Call& call) {
  constexpr double kOverflowingScale = 8192;
  if (unknown() != Unknown::least) {
    runtime().assume(call.info().name, kTakenAsFinite);
    return;
  }
  const at::Tensor inverse_scale = read_values(call.tensor(2));
  if (!inverse_scale.defined()) return;
  if (inverse_scale.item<double>() * kOverflowingScale >= 1) return;
  const at::Tensor found = writable_values(call.tensor(1), true);
  if (!found.defined()) return;
  found.fill_(1);
  note_values(call.tensor(1), Source::computed);
}

}  // namespace

void compute_values(const Call& call) {
  const WithContentsScope real;
  const bool is_random = call.info().is_random;
  const RandomState random = is_random ? take_random_state(call) : RandomState();
  const auto written = find_written(call);
  if (!written || written->empty()) return;
  const Arguments arguments = look_at_arguments(call);
  // A captured kernel runs later, in each replay, on data that is not known yet.
  const bool is_captured = runtime().current_capture(call.device()) != 0;
  const bool is_unsure = is_captured || !arguments.can_be_read || arguments.worst > Source::random;
  if (is_unsure && call.info().has(kFindsFinite)) return find_finite(call);
  std::vector<Known> known;
  // Random numbers are described even if they are computed. known_of could not describe them later:
  // it looks only at small tensors, and finds the bounds of the numbers but not the distribution.
  if (is_unsure || is_random || arguments.worst == Source::random) {
    known = describe(call, *written);
    if (is_unsure && are_constant(known)) return note(*written, known);
  }
  const bool is_wanted =
      !is_captured && arguments.can_be_read && is_worth_it(call, arguments, *written);
  const bool is_drawn = is_wanted && is_random && draw(call, random);
  const bool is_computed =
      is_drawn || (is_wanted && run_on_host(call, seed_of(random)) == Outcome::computed);
  if (is_computed) {
    const Source least = is_random && !is_drawn ? Source::random : Source::computed;
    const Source source = std::min(std::max(arguments.worst, least), Source::assumed);
    for (std::size_t i = 0; i < written->size(); ++i) {
      const at::Tensor& tensor = (*written)[i].tensor;
      known.empty() ? note_values(tensor, source) : note_values(tensor, source, known[i]);
    }
  } else {
    if (known.empty()) known = describe(call, *written);
    // Without operands on the device, the program itself wrote a constant, as by torch.full.
    for (Known& each : known) {
      each.description.is_given |=
          !arguments.reads_device && !is_random && each.description.is_constant();
    }
    note(*written, known);
  }
}

}  // namespace plimsoll::simulated
