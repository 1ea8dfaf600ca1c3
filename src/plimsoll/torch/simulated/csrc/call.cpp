#include "call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace plimsoll::simulated {
namespace {

constexpr const char* kTwoDevices =
    "Expected all tensors to be on the same device, but found at least two devices, ";

// Values are kept for tensors up to these sizes; integers decide shapes and control flow.
constexpr std::size_t kMostFloatBytes = 4096;
constexpr std::size_t kMostIntegerBytes = std::size_t{1} << 20;

std::size_t most_bytes(at::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) ? kMostIntegerBytes : kMostFloatBytes;
}

bool is_simulated(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// Replaces every tensor within a value.
template <typename Replace>
c10::IValue map_tensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(replace(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

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

}  // namespace

std::size_t storage_bytes(const at::Tensor& shape) {
  return shape.has_storage() ? shape.storage().nbytes() : 0;
}

at::Tensor meta_like(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;  // a plain number
  c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::Meta);
  const std::size_t bytes = tensor.has_storage()
                                ? tensor.storage().nbytes()
                                : static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t{}, bytes,
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)), allocator, true);
  at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::Meta),
      tensor.dtype());
  c10::TensorImpl* const impl = meta.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) meta._set_conj(true);
  if (tensor.is_neg()) meta._set_neg(true);
  return meta;
}

at::Tensor make_tensor(const at::Tensor& shape, c10::DeviceIndex device) {
  const std::size_t bytes = storage_bytes(shape);
  Runtime& state = runtime();
  const c10::DeviceIndex before = state.current_device();
  if (before != device) state.set_device(device);
  c10::DataPtr memory;
  try {
    memory = device_allocator()->allocate(bytes);
  } catch (...) {
    state.set_device(before);
    throw;
  }
  if (before != device) state.set_device(before);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{}, bytes,
                                                       std::move(memory), device_allocator(), true);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CUDA), shape.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(),
                                                    shape.storage_offset());
  return made;
}

bool has_values(const at::Tensor& tensor) {
  const Allocation* const allocation = allocation_of(tensor);
  return allocation != nullptr && allocation->values != nullptr;
}

void fill_unknown(const at::Tensor& tensor) {
  const bool is_integer = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  tensor.fill_(is_integer ? 0 : 1);
}

at::Tensor values_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return at::from_blob(nullptr, tensor.sizes(), tensor.strides(),
                         at::TensorOptions().dtype(tensor.dtype()));
  }
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || allocation->size > most_bytes(tensor.scalar_type())) return {};
  if (!allocation->values) {
    allocation->values = std::make_unique<std::byte[]>(allocation->size);
    const auto count = static_cast<std::int64_t>(allocation->size / tensor.itemsize());
    fill_unknown(at::from_blob(allocation->values.get(), {count},
                               at::TensorOptions().dtype(tensor.dtype())));
  }
  std::byte* const first = allocation->values.get() +
                           static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  at::Tensor values = at::from_blob(first, tensor.sizes(), tensor.strides(),
                                    at::TensorOptions().dtype(tensor.dtype()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    values.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return values;
}

// --- a call --------------------------------------------------------------------------------------

Call::Call(const c10::OperatorHandle& op, const OperationInfo& info, torch::jit::Stack& stack)
    : op_(op), info_(info), stack_(stack), count_(op.schema().arguments().size()) {
  arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count_), stack.end());
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count_), stack.end());
  for (const c10::IValue& argument : arguments_) {
    map_tensors(argument, [this](const at::Tensor& tensor) {
      if (tensor.defined()) inputs_.push_back(tensor);
      return tensor;
    });
  }
  find_device();
  if (info.has(kTakesIndices)) check_indices();
  if (!info.has(kMixesDevices)) check_devices();
  results_.resize(info.results.size());
  is_allocated_.assign(info.results.size(), false);
}

at::Tensor Call::tensor(std::size_t index) const {
  const c10::IValue& value = arguments_[index];
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

std::vector<at::Tensor> Call::tensors(std::size_t index) const {
  std::vector<at::Tensor> list;
  map_tensors(arguments_[index], [&](const at::Tensor& tensor) {
    list.push_back(tensor);
    return tensor;
  });
  return list;
}

void Call::find_device() {
  for (const at::Tensor& tensor : inputs_) {
    if (tensor.is_cuda()) {
      device_ = tensor.device().index();
      return;
    }
  }
  device_ = runtime().current_device();
  for (const c10::IValue& argument : arguments_) {
    if (argument.isDevice() && argument.toDevice().has_index()) {
      device_ = argument.toDevice().index();
    }
  }
}

void Call::check_devices() const {
  std::optional<c10::Device> common;
  const auto& schema_arguments = op_.schema().arguments();
  for (std::size_t i = 0; i < count_; ++i) {
    map_tensors(arguments_[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;
      if (!common) {
        common = tensor.device();
      } else if (*common != tensor.device()) {
        // TensorIterator's text, and then that of PyTorch's generated code.
        TORCH_CHECK(!info_.is_pointwise && !info_.has(kByIterator), kTwoDevices, *common, " and ",
                    tensor.device(), "!");
        const std::string method = "wrapper_CUDA_" + info_.plain_name;
        c10::impl::common_device_check_failure(*common, tensor, method.c_str(),
                                               schema_arguments[i].name().c_str());
      }
      return tensor;
    });
  }
}

void Call::check_indices() const {
  const at::Tensor self = tensor(0);
  for (const at::Tensor& index : tensors(1)) {
    TORCH_CHECK(!index.defined() || index.is_cpu() || index.device() == self.device(),
                "indices should be either on cpu or on the same device as the indexed tensor (",
                self.device(), ")");
  }
  const at::Tensor values = count_ > 2 ? tensor(2) : at::Tensor();
  TORCH_CHECK(!values.defined() || values.device() == self.device() || values.dim() == 0,
              kTwoDevices, self.device(), " and ", values.device(), "!");
}

void Call::infer() {
  if (is_inferred_) return;
  is_inferred_ = true;
  if (!info_.needs_shapes) return;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> converted;
  for (const c10::IValue& argument : arguments_) {
    if (argument.isDevice()) {
      shapes_.emplace_back(c10::Device(c10::DeviceType::Meta));
    } else if (argument.isGenerator()) {
      shapes_.emplace_back();
    } else {
      shapes_.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        at::Tensor& meta = converted[tensor.unsafeGetTensorImpl()];
        if (!meta.defined()) meta = meta_like(tensor);
        return meta;
      }));
    }
  }
  try {
    op_.callBoxed(&shapes_);
  } catch (const c10::NotImplementedError&) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "plimsoll cannot simulate the operation ", op_.schema().name(),
        ": PyTorch has no shape function for it. If it is your own, register a Meta kernel "
        "(torch.library.register_fake)");
  }
}

at::Tensor Call::shape_of_result(std::size_t index) {
  infer();
  if (index >= shapes_.size() || !shapes_[index].isTensor()) return {};
  return shapes_[index].toTensor();
}

void Call::set_shape(std::size_t index, c10::IValue shape) {
  is_inferred_ = true;
  if (shapes_.size() < results_.size()) shapes_.resize(results_.size());
  shapes_[index] = std::move(shape);
}

void Call::set_result(std::size_t index, const at::Tensor& tensor) {
  is_allocated_[index] = true;
  results_[index] = tensor;
}

at::Tensor Call::allocate(std::size_t index) {
  infer();
  if (is_allocated_[index]) {
    return results_[index].isTensor() ? results_[index].toTensor() : at::Tensor();
  }
  is_allocated_[index] = true;
  const Result& result = info_.results[index];
  if (result.kind == Result::Kind::argument) {
    results_[index] = arguments_[result.argument];
    if (index < shapes_.size() && shapes_[index].isTensor() && results_[index].isTensor()) {
      const at::Tensor target = results_[index].toTensor();
      const at::Tensor shape = shapes_[index].toTensor();
      if (is_simulated(target) && shape.defined() && target.sizes() != shape.sizes()) {
        target.resize_(shape.sizes());
        target.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
      }
    }
    return results_[index].isTensor() ? results_[index].toTensor() : at::Tensor();
  }
  if (index >= shapes_.size()) return {};
  std::size_t element = 0;
  const c10::IValue base =
      result.kind == Result::Kind::view ? arguments_[result.argument] : c10::IValue();
  const OperationScope scope(info_.name, current_operation().role);
  results_[index] = map_tensors(shapes_[index], [&](const at::Tensor& shape) -> at::Tensor {
    if (!shape.defined() || !shape.is_meta()) return shape;
    if (result.kind == Result::Kind::fresh) {
      // Of a list each result is where its own operand is, and the operands come first.
      const bool is_elsewhere = info_.has(kOnLists) && inputs_[element].is_cuda();
      return make_tensor(shape, is_elsewhere ? inputs_[element++].device().index() : device_);
    }
    const at::Tensor of = base.isTensor() ? base.toTensor() : base.toTensorVector()[element++];
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(of.storage()), of.key_set(), shape.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(),
                                                      shape.storage_offset());
    return view;
  });
  return results_[index].isTensor() ? results_[index].toTensor() : at::Tensor();
}

void Call::allocate_all() {
  for (std::size_t i = 0; i < results_.size(); ++i) allocate(i);
}

std::size_t Call::temporary(std::size_t bytes) {
  const OperationScope scope(info_.name, Role::temporary);
  Runtime& state = runtime();
  const c10::DeviceIndex before = state.current_device();
  state.set_device(device_);
  temporaries_.push_back(take_memory(bytes));
  temporary_bytes_ += static_cast<double>(bytes);
  state.set_device(before);
  return temporaries_.size() - 1;
}

void Call::release(std::size_t temporary) {
  const OperationScope scope(info_.name, Role::temporary);
  temporaries_[temporary].clear();
}

void Call::note_work(double flops, at::ScalarType type, bool allows_tf32) {
  constexpr double kEfficiency = 0.5;
  const DeviceProperties& on = properties();
  const double rate = type != at::kFloat ? on.tensor_flops_per_ns
                      : allows_tf32      ? on.tensor_flops_per_ns / 2
                                         : on.flops_per_ns;
  work_ns_ += flops / (rate * kEfficiency);
}

void Call::launch() {
  constexpr double kLaunchNs = 3000;
  constexpr double kEfficiency = 0.7;
  double bytes = 2 * temporary_bytes_;
  const auto count = [&](const at::Tensor& tensor) {
    if (is_simulated(tensor)) {
      bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
    }
    return tensor;
  };
  for (const c10::IValue& argument : arguments_) map_tensors(argument, count);
  for (std::size_t i = 0; i < results_.size(); ++i) {
    if (info_.results[i].kind == Result::Kind::fresh) map_tensors(results_[i], count);
  }
  Runtime& state = runtime();
  const Device& on = state.device(device_);
  const double time =
      kLaunchNs + std::max(bytes / (on.properties.bytes_per_ns * kEfficiency), work_ns_);
  state.api->advance(on.engine, state.host_ns_per_operation);
  state.api->launch(on.engine, static_cast<std::uint64_t>(state.current_stream(device_)), time);
}

std::uint64_t Call::next_seed() const {
  constexpr std::uint64_t kDrawn = 4;  // the numbers of a Philox block
  at::Generator generator =
      at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CUDA, device_));
  for (const c10::IValue& argument : arguments_) {
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

// Small tensors have values, so that lengths, masks and counters are what they would be.
void Call::compute_values() {
  const std::uint64_t seed = info_.is_random ? next_seed() : 0;
  bool is_placeholder = info_.is_random;
  bool any_device = false;
  for (std::size_t i = 0; i < count_; ++i) {
    bool fits = true;
    map_tensors(arguments_[i], [&](const at::Tensor& tensor) {
      if (!is_simulated(tensor) || !fits) return tensor;
      any_device = true;
      const Allocation* const allocation = allocation_of(tensor);
      if (tensor.numel() != 0 &&
          (allocation == nullptr || allocation->size > most_bytes(tensor.scalar_type()))) {
        fits = false;
      } else if (tensor.scalar_type() == at::kBool && allocation != nullptr &&
                 !allocation->values && !(info_.has(kOverwrites) && info_.is_written[i])) {
        fits = false;  // a comparison of unknown numbers
      } else if (allocation != nullptr && allocation->is_placeholder &&
                 !(info_.has(kOverwrites) && info_.is_written[i])) {
        is_placeholder = true;
      }
      return tensor;
    });
    if (!fits) is_placeholder = true;
    if (!fits) {
      any_device = false;
      break;
    }
  }
  std::vector<at::Tensor> written;
  bool results_fit = any_device || inputs_.empty();
  const auto note_written = [&](const at::Tensor& tensor) {
    if (!is_simulated(tensor) || tensor.numel() == 0) return tensor;
    Allocation* const allocation = allocation_of(tensor);
    if (allocation == nullptr) return tensor;
    if (allocation->size > most_bytes(tensor.scalar_type())) results_fit = false;
    written.push_back(tensor);
    return tensor;
  };
  for (std::size_t i = 0; i < results_.size(); ++i) {
    if (info_.results[i].kind == Result::Kind::view) return;  // shares its base's values
    if (info_.results[i].kind == Result::Kind::fresh) map_tensors(results_[i], note_written);
  }
  for (std::size_t i = 0; i < count_; ++i) {
    if (info_.is_written[i]) map_tensors(arguments_[i], note_written);
  }
  if (results_fit && !written.empty()) {
    try {
      torch::jit::Stack values;
      for (const c10::IValue& argument : arguments_) {
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
        if (info_.is_random) scope.emplace(seed);
        op_.callBoxed(&values);
      }
      for (std::size_t i = 0; i < results_.size(); ++i) {
        if (info_.results[i].kind != Result::Kind::fresh) continue;
        std::vector<at::Tensor> computed;
        map_tensors(values[i], [&](const at::Tensor& tensor) {
          computed.push_back(tensor);
          return tensor;
        });
        std::size_t place = 0;
        map_tensors(results_[i], [&](const at::Tensor& tensor) {
          const at::Tensor& value = computed.at(place++);
          if (is_simulated(tensor) && value.defined() && value.sizes() == tensor.sizes()) {
            values_of(tensor).copy_(value);
          }
          return tensor;
        });
      }
      for (const at::Tensor& tensor : written) {
        allocation_of(tensor)->is_placeholder = is_placeholder;
      }
      return;
    } catch (const std::exception&) {
      // The CPU has no such kernel, or placeholders made no sense to it.
    }
  }
  for (const at::Tensor& tensor : written) {
    Allocation* const allocation = allocation_of(tensor);
    allocation->is_placeholder = true;
    const bool is_integer = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    if (!allocation->values || is_integer || info_.has(kFindsFinite)) continue;
    if (const at::Tensor values = values_of(tensor); values.defined()) fill_unknown(values);
  }
  if (results_.empty() || !results_[0].isTensor()) return;
  // Counts by row are not of every element: PyTorch takes those of zeros in prod's backward pass.
  const at::Tensor result = results_[0].toTensor();
  const bool is_count =
      info_.has(kCountsAll) && result.numel() == 1 && inputs_[0].scalar_type() == at::kBool;
  if (!is_count && !info_.has(kHoldsTrue)) return;
  if (const at::Tensor values = values_of(result); values.defined()) {
    values.fill_(is_count ? inputs_[0].numel() : 1);
  }
}

void Call::finish() {
  allocate_all();
  compute_values();
  while (!temporaries_.empty()) {
    const OperationScope scope(info_.name, Role::temporary);
    temporaries_.pop_back();
  }
  for (c10::IValue& result : results_) stack_.push_back(std::move(result));
}

void Call::finish_on_host(const std::function<at::Tensor(const at::Tensor&)>& make) {
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Result& result = info_.results[i];
    if (result.kind == Result::Kind::argument) {
      const c10::IValue& target = arguments_[result.argument];
      if (i < shapes_.size() && shapes_[i].isTensor() && target.isTensor() &&
          target.toTensor().sizes() != shapes_[i].toTensor().sizes()) {
        target.toTensor().resize_(shapes_[i].toTensor().sizes());
      }
      stack_.push_back(target);
    } else if (i < shapes_.size()) {
      stack_.push_back(map_tensors(shapes_[i], make));
    }
  }
}

void run_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const OperationInfo& info = info_of(op);
  const OperationScope scope(info.name, Role::output);
  Call call(op, info, *stack);
  if (!info.is_known()) call.assume("its kernel takes no memory besides its results");
  if (info.is_random && info.is_in_place()) {
    const at::Tensor target = call.tensor(info.results[0].argument);
    const Allocation* const allocation = allocation_of(target);
    if (allocation != nullptr) {
      runtime().note_role(allocation->device, allocation->serial, Role::input);
    }
  }
  if (info.rule != nullptr) info.rule(call);
  call.allocate_all();
  if (!info.is_view()) call.launch();
  call.finish();
}

}  // namespace plimsoll::simulated
