#include "operation/call.h"

#include <c10/util/Exception.h>

#include <string>
#include <unordered_map>
#include <utility>

namespace plimsoll::simulated {

Call::Call(const c10::OperatorHandle& op, const OperationInfo& info, torch::jit::Stack& stack)
    : op_(op), info_(info) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  arguments_.assign(first, stack.end());
  stack.erase(first, stack.end());
  for (const c10::IValue& argument : arguments_) {
    for_tensors(argument, [this](const at::Tensor& tensor) {
      if (tensor.defined()) inputs_.push_back(tensor);
    });
  }
  find_device();
  results_.resize(info.results.size());
  is_decided_.assign(info.results.size(), false);
}

at::Tensor Call::tensor(std::size_t index) const {
  const c10::IValue& value = arguments_[index];
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

std::vector<at::Tensor> Call::tensors(std::size_t index) const {
  std::vector<at::Tensor> list;
  for_tensors(arguments_[index], [&](const at::Tensor& tensor) { list.push_back(tensor); });
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

void Call::infer() {
  if (is_inferred_) return;
  is_inferred_ = true;
  if (!info_.needs_shapes) return;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> converted;
  MetaStorages storages;
  // Kernels on lists do not check whether their tensors share storages. So each tensor in a list
  // may get a meta tensor with a storage of its own.
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
    // If an operation has no Meta kernel, PyTorch may call a kernel that serves all devices and
    // give it the meta tensors. If that kernel reads a value, the error's text contains
    // "meta tensors".
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

void Call::set_result(std::size_t index, c10::IValue result) {
  is_decided_[index] = true;
  results_[index] = std::move(result);
}

at::Tensor Call::allocate(std::size_t index) {
  const at::Tensor shape = shape_of_result(index);
  if (!is_decided_[index]) {
    is_decided_[index] = true;
    steps_.emplace_back(Allocate{index});
  } else if (results_[index].isTensor()) {
    return results_[index].toTensor();
  }
  const Result& result = info_.results[index];
  if (result.kind != Result::Kind::argument) return shape;
  const at::Tensor target = tensor(result.argument);
  return shape.defined() && is_simulated(target) && target.sizes() != shape.sizes() ? shape
                                                                                    : target;
}

void Call::allocate_all() {
  for (std::size_t i = 0; i < results_.size(); ++i) allocate(i);
}

std::size_t Call::temporary(std::size_t bytes) {
  kept_.emplace_back();
  steps_.emplace_back(Take{kept_.size() - 1, bytes});
  return kept_.size() - 1;
}

std::size_t Call::run(std::function<std::vector<at::Tensor>()> operations) {
  const std::size_t number = kept_.size();
  kept_.emplace_back();
  then([number, operations = std::move(operations)](Call& call) {
    call.kept()[number].tensors = operations();
  });
  return number;
}

}  // namespace plimsoll::simulated
