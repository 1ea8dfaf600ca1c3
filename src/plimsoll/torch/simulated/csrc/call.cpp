#include "call.h"

#include <ATen/core/op_registration/adaption.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "checks/checks.h"
#include "kernels.h"
#include "overlap.h"
#include "tensors.h"
#include "timing/kernel_times.h"
#include "values/computation.h"

namespace plimsoll::simulated {
namespace {

constexpr const char* kMayTakeMore = ", but may take about as much as its tensors";
constexpr const char* kTwoDevices =
    "Expected all tensors to be on the same device, but found at least two devices, ";

}  // namespace

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
  if (!info.is_view()) {
    for (const at::Tensor& tensor : inputs_) check_access(tensor);
  }
  if (info.has(kTakesIndices)) check_indices();
  if (!info.has(kMixesDevices)) check_devices();
  check_overlap(*this);
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
  MetaStorages storages;
  // Kernels on lists do not compare their tensors.
  const bool keeps_aliases = !info_.has(kOnLists);
  for (const c10::IValue& argument : arguments_) {
    if (argument.isDevice()) {
      shapes_.emplace_back(c10::Device(c10::DeviceType::Meta));
    } else if (argument.isGenerator()) {
      shapes_.emplace_back();
    } else {
      shapes_.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        at::Tensor& meta = converted[tensor.unsafeGetTensorImpl()];
        if (!meta.defined()) meta = meta_like(tensor, keeps_aliases ? &storages : nullptr);
        return meta;
      }));
    }
  }
  try {
    op_.callBoxed(&shapes_);
  } catch (const c10::NotImplementedError&) {
    refuse("nothing says what it returns");
  } catch (const c10::Error& error) {
    // A kernel for all devices that goes on with a value.
    const std::string_view what = error.what_without_backtrace();
    if (what.find("meta tensors") == std::string_view::npos) throw;
    refuse("what it returns depends on values");
  }
}

void Call::refuse(const char* why) const {
  const std::string& name = op_.schema().name();
  const std::string library = name.substr(0, name.find(':'));
  TORCH_CHECK_NOT_IMPLEMENTED(library == "aten", "plimsoll cannot simulate the operation ", name,
                              " of the library ", library, ": ", why,
                              "; say it by plimsoll.simulated_operation(\"", name,
                              "\", shapes=..., workspace=...), or by torch.library.register_fake");
  TORCH_CHECK_NOT_IMPLEMENTED(false, "plimsoll cannot simulate the operation ", name, ": ", why);
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
  const DeviceScope device(device_);
  temporaries_.push_back(take_memory(bytes));
  return temporaries_.size() - 1;
}

void Call::release(std::size_t temporary) {
  const OperationScope scope(info_.name, Role::temporary);
  temporaries_[temporary].clear();
}

void Call::note_product(const Product& product) {
  flops_ += product.flops();
  computed_ns_ += product_ns(product, properties());
}

void Call::note_convolution(const ConvolutionWork& work, Pass pass) {
  flops_ += 2 * work.outputs * work.out_channels * work.taps * work.channels / work.groups;
  computed_ns_ += convolution_ns(work, pass, properties());
}

void Call::note_attention(const AttentionWork& work, bool is_backward) {
  computed_ns_ += attention_ns(work, is_backward, properties());
}

void Call::note_reduction(const at::Tensor& tensor) {
  besides_ns_ += reduction_ns(tensor, properties());
}

void Call::note_copy(const at::Tensor& tensor) {
  besides_ns_ += contiguous_ns(tensor, properties());
}

void Call::note_recurrent(const RecurrentWork& work, bool is_backward) {
  computed_ns_ += recurrent_ns(work, is_backward, properties());
}

std::uint64_t Call::tensor_bytes() const {
  std::uint64_t bytes = 0;
  const auto count = [&](const at::Tensor& tensor) {
    if (is_simulated(tensor)) bytes += tensor.nbytes();
    return tensor;
  };
  for (const c10::IValue& argument : arguments_) map_tensors(argument, count);
  for (std::size_t i = 0; i < results_.size(); ++i) {
    if (info_.results[i].kind == Result::Kind::fresh) map_tensors(results_[i], count);
  }
  return bytes;
}

void Call::launch() {
  Runtime& state = runtime();
  if (assumed_memory_ != nullptr) {
    const std::string what = std::string(assumed_memory_) + kMayTakeMore;
    state.assume(info_.name, what, tensor_bytes());
  }
  const KernelTime* const row = kernel_time(*this);
  const double here = (computed_ns_ > 0 ? computed_ns_ : memory_ns(*this, row)) + besides_ns_;
  const double time = std::max(here, bus_ns(*this));
  state.pass_host_time(device_, host_ns(*this, row));
  state.launch(device_, Work::compute, time);
}

// A list that is written in place: of a single tensor a kernel above this one counts it. As kernels
// of _foreach_ operations do themselves (aten/src/ATen/native/cuda/Foreach*.cu).
void Call::count_writes() {
  if (!info_.plain_name.starts_with("_foreach_") || !info_.is_written[0]) return;
  map_tensors(arguments_[0], [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    return tensor;
  });
}

void Call::finish() {
  allocate_all();
  count_writes();
  compute_values(*this);
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
  if (has_new_operators) take_over_new_operators();
  const OperationInfo& info = info_of(op);
  const OperationScope scope(info.name, Role::output);
  Call call(op, info, *stack);
  if (!info.is_known()) call.assume_memory("its kernel takes no memory besides its results");
  if (!info.is_view()) check_data(call);
  if (info.rule != nullptr) info.rule(call);
  call.allocate_all();
  if (!info.is_view()) call.launch();
  call.finish();
}

}  // namespace plimsoll::simulated
