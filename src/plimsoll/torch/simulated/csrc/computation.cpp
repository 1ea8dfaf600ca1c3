#include "computation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "memory.h"
#include "tensors.h"
#include "values.h"

namespace plimsoll::simulated {
namespace {

// Makes the host's own generator, the only one that some operations know, draw from a seed; what
// the program draws from it is the same as ever.
class HostSeedScope {
 public:
  explicit HostSeedScope(std::uint64_t seed)
      : generator_(at::detail::getDefaultCPUGenerator()), saved_(generator_.get_state()) {
    generator_.set_current_seed(seed);
  }
  ~HostSeedScope() { generator_.set_state(saved_); }
  HostSeedScope(const HostSeedScope&) = delete;
  HostSeedScope& operator=(const HostSeedScope&) = delete;

 private:
  at::Generator generator_;
  at::Tensor saved_;
};

// What values are drawn with: from the program's generator, or the device's, which it moves on.
std::uint64_t next_seed(const Call& call) {
  constexpr std::uint64_t kDrawn = 4;  // the numbers of a Philox block
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
  const std::uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kDrawn);
  const std::uint64_t mixed = generator.current_seed() ^ (offset * 0x9E3779B97F4A7C15U);
  return mixed ^ (mixed >> 32);  // a generator of the host takes the lower half
}

struct Arguments {
  bool have_values = false;
  bool are_placeholders = true;
};

Arguments look_at_arguments(const Call& call) {
  const OperationInfo& info = call.info();
  bool have_values = true;
  bool are_placeholders = false;
  bool any_device = false;
  for (std::size_t i = 0; i < call.argument_count() && have_values; ++i) {
    const bool is_overwritten = info.has(kOverwrites) && info.is_written[i];
    map_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (!is_simulated(tensor) || !have_values) return tensor;
      any_device = true;
      const at::ScalarType type = tensor.scalar_type();
      const Allocation* const allocation = allocation_of(tensor);
      if (allocation == nullptr) {
        have_values = tensor.numel() == 0;
        return tensor;
      }
      const bool is_too_large = tensor.numel() != 0 && !may_have_values(*allocation, type);
      // A comparison of unknown numbers.
      const bool is_unknown_mask = type == at::kBool && !allocation->values && !is_overwritten;
      have_values = !is_too_large && !is_unknown_mask;
      if (allocation->is_placeholder && !is_overwritten) are_placeholders = true;
      return tensor;
    });
  }
  if (!have_values) return {};
  return {any_device || call.inputs().empty(), are_placeholders};
}

// The tensors on a device that the operation writes; none where a result shares its base's values.
std::optional<std::vector<at::Tensor>> find_written(const Call& call) {
  const OperationInfo& info = call.info();
  std::vector<at::Tensor> written;
  const auto note = [&](const at::Tensor& tensor) {
    if (is_simulated(tensor) && tensor.numel() != 0 && allocation_of(tensor) != nullptr) {
      written.push_back(tensor);
    }
    return tensor;
  };
  for (std::size_t i = 0; i < info.results.size(); ++i) {
    if (info.results[i].kind == Result::Kind::view) return std::nullopt;
    if (info.results[i].kind == Result::Kind::fresh) map_tensors(call.results()[i], note);
  }
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (info.is_written[i]) map_tensors(call.argument(i), note);
  }
  return written;
}

bool may_all_have_values(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return may_have_values(*allocation_of(tensor), tensor.scalar_type());
  });
}

// Runs the operation on the host. False: the CPU has no such kernel, or placeholders made no sense
// to it.
bool run_on_host(const Call& call, std::uint64_t seed) {
  try {
    torch::jit::Stack values;
    for (const c10::IValue& argument : call.arguments()) {
      if (argument.isDevice()) {
        values.emplace_back(c10::Device(c10::DeviceType::CPU));
      } else if (argument.isGenerator()) {
        values.emplace_back();
      } else {
        values.push_back(map_tensors(argument, [](const at::Tensor& tensor) {
          return is_simulated(tensor) ? values_of(tensor) : tensor;
        }));
      }
    }
    {
      std::optional<HostSeedScope> scope;
      if (call.info().is_random) scope.emplace(seed);
      call.op().callBoxed(&values);
    }
    for (std::size_t i = 0; i < call.results().size(); ++i) {
      if (call.info().results[i].kind != Result::Kind::fresh) continue;
      std::vector<at::Tensor> computed;
      map_tensors(values[i], [&](const at::Tensor& tensor) {
        computed.push_back(tensor);
        return tensor;
      });
      std::size_t place = 0;
      map_tensors(call.results()[i], [&](const at::Tensor& tensor) {
        const at::Tensor& value = computed.at(place++);
        if (is_simulated(tensor) && value.defined() && value.sizes() == tensor.sizes()) {
          values_of(tensor).copy_(value);
        }
        return tensor;
      });
    }
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

void assume_values(const Call& call, const std::vector<at::Tensor>& written) {
  const OperationInfo& info = call.info();
  for (const at::Tensor& tensor : written) {
    Allocation* const allocation = allocation_of(tensor);
    allocation->is_placeholder = true;
    const bool is_integer = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    if (!allocation->values || is_integer || info.has(kFindsFinite)) continue;
    if (const at::Tensor values = values_of(tensor); values.defined()) fill_unknown(values);
  }
  if (call.results().empty() || !call.results()[0].isTensor()) return;
  const at::Tensor result = call.results()[0].toTensor();
  // Counts by row are not of every element: PyTorch takes those of zeros in prod's backward pass.
  const bool is_count =
      info.has(kCountsAll) && result.numel() == 1 && call.inputs()[0].scalar_type() == at::kBool;
  if (!is_count && !info.has(kHoldsTrue)) return;
  if (const at::Tensor values = values_of(result); values.defined()) {
    values.fill_(is_count ? call.inputs()[0].numel() : 1);
  }
}

}  // namespace

void compute_values(const Call& call) {
  const bool is_random = call.info().is_random;
  const std::uint64_t seed = is_random ? next_seed(call) : 0;
  const auto written = find_written(call);
  if (!written) return;
  const Arguments arguments = look_at_arguments(call);
  if (arguments.have_values && !written->empty() && may_all_have_values(*written) &&
      run_on_host(call, seed)) {
    for (const at::Tensor& tensor : *written) {
      allocation_of(tensor)->is_placeholder = is_random || arguments.are_placeholders;
    }
  } else {
    assume_values(call, *written);
  }
}

}  // namespace plimsoll::simulated
