#include "execute/run.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "checks/arguments.h"
#include "checks/checks.h"
#include "device/library_handles.h"
#include "device/memory.h"
#include "device/tensors.h"
#include "device/workspaces.h"
#include "execute/by_element.h"
#include "operation/call.h"
#include "timing/timing.h"
#include "values/computation.h"

namespace plimsoll::simulated {
namespace {

constexpr const char* kOnlyResults = "plimsoll counts only its results";
constexpr const char* kMayTakeMore =
    "; its kernel may also take about as much memory as its tensors";

// Resizes an output to the result's shape, as PyTorch's kernels do.
void resize_to(const at::Tensor& target, const at::Tensor& shape) {
  if (!is_simulated(target) || !shape.defined() || target.sizes() == shape.sizes()) return;
  target.resize_(shape.sizes());
  target.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
}

at::Tensor view_of(const at::Tensor& base, const at::Tensor& shape) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), shape.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(),
                                                    shape.storage_offset());
  return view;
}

// Returns whether autograd records the call, so that its results have a grad_fn.
bool is_recorded(const Call& call) {
  return c10::GradMode::is_enabled() &&
         std::ranges::any_of(call.inputs(), [](const at::Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

c10::IValue make_result(const Call& call, std::size_t index) {
  const OperationInfo& info = call.info();
  const Result& result = info.results[index];
  const c10::IValue shape = index < call.shapes().size() ? call.shapes()[index] : c10::IValue();
  if (result.kind == Result::Kind::argument) {
    const c10::IValue& target = call.argument(result.argument);
    if (target.isTensor() && shape.isTensor()) resize_to(target.toTensor(), shape.toTensor());
    return target;
  }
  std::size_t element = 0;
  const bool is_recorded_call = is_recorded(call);
  return map_tensors(shape, [&](const at::Tensor& of) -> at::Tensor {
    if (!of.defined() || !of.is_meta()) return of;
    if (result.kind == Result::Kind::fresh) {
      const bool has_grad_fn = is_recorded_call && (of.is_floating_point() || of.is_complex());
      const OperationScope scope(info.name, current_operation().role, has_grad_fn);
      return make_tensor(of, call.device());
    }
    const c10::IValue& base = call.argument(result.argument);
    return view_of(base.isTensor() ? base.toTensor() : base.toTensorVector()[element++], of);
  });
}

void do_steps(Call& call);

// Runs one step of a call. std::visit selects the function for the step's type.
struct Do {
  Call& call;

  void operator()(const Allocate& step) const {
    call.set_result(step.result, make_result(call, step.result));
  }
  void operator()(const TakeUncertain& step) const {
    runtime().note_uncertain(call.device(), step.memory);
    if (step.memory.bytes == 0) return;
    const OperationScope scope(call.info().name, Role::temporary);
    const DeviceScope device(call.device());
    take_memory(step.memory.bytes);
  }
  void operator()(const Take& step) const {
    const OperationScope scope(call.info().name, Role::temporary);
    const DeviceScope device(call.device());
    call.kept()[step.number].memory = take_memory(step.bytes);
  }
  void operator()(const Release& step) const {
    Call::Kept& kept = call.kept()[step.number];
    kept.tensors.clear();
    const OperationScope scope(call.info().name, Role::temporary);
    kept.memory.clear();
  }
  void operator()(const TakeWorkspace& step) const {
    const OperationScope scope(call.info().name, Role::workspace);
    take_workspace(call.device(), step.is_lt, step.is_kept, step.bytes);
  }
  void operator()(const Wait&) const { runtime().synchronize(call.device()); }
  void operator()(const EmptyCache&) const { empty_cache(call.device()); }
  void operator()(const Assume& step) const { runtime().assume(call.info().name, step.what); }
  void operator()(const Then& step) const {
    step.decide(call);
    do_steps(call);
  }
};

void do_steps(Call& call) {
  for (const Step& step : call.take_steps()) std::visit(Do{call}, step);
}

// Returns the bytes of all arguments and results.
std::uint64_t tensor_bytes(const Call& call) {
  Touched touched;
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    double& bytes = call.info().is_cache[i] ? touched.caches : touched.whole;
    for_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (is_simulated(tensor)) bytes += static_cast<double>(tensor.nbytes());
    });
  }
  for_new_results(call, [&](const at::Tensor& tensor) {
    touched.whole += static_cast<double>(tensor.nbytes());
  });
  return static_cast<std::uint64_t>(touched.bytes());
}

// Queues the operation's kernel on the device's current stream. Before that, takes the memory of
// the libraries that the kernel uses, unless they are already loaded.
void launch(const Call& call) {
  Runtime& state = runtime();
  if (call.assumed_memory() != nullptr) {
    state.assume(call.info().name, std::string(call.assumed_memory()) + kMayTakeMore,
                 tensor_bytes(call));
  }
  for (const Library library : call.libraries()) {
    if (library == Library::solver) {
      need_solver_handle(call.device());
    } else {
      state.load(call.device(), library);
    }
  }
  const KernelTime* const row = kernel_time(call);
  const double time = kernel_ns(call, row);
  state.pass_host_time(call.device(), host_ns(call, row));
  state.launch(call.device(), Work::compute, time);
}

// If the kernel wrote to a list of tensors, increases the tensors' version counters, as PyTorch's
// _foreach_ kernels do (aten/src/ATen/native/cuda/Foreach*.cu). For a single tensor,
// PyTorch's ADInplaceOrView kernel increases the counter before the simulated kernel runs.
void count_writes(const Call& call) {
  if (!call.info().plain_name.starts_with("_foreach_") || !call.info().is_written[0]) return;
  for_tensors(call.argument(0), [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  });
}

}  // namespace

void run_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const OperationInfo& info = info_of(op);
  if (info.has(kOnLists) && run_by_element(op, info, stack)) return;
  const OperationScope scope(info.name, Role::output);
  Call call(op, info, *stack);
  check_arguments(call);
  if (!info.is_view()) check_data(call);
  if (!info.is_known()) call.assume_memory(kOnlyResults);
  if (info.rule != nullptr) info.rule(call);
  do_steps(call);
  call.allocate_all();
  do_steps(call);
  if (!info.is_view()) launch(call);
  count_writes(call);
  compute_values(call);
  while (!call.kept().empty()) {
    const OperationScope temporaries(info.name, Role::temporary);
    call.kept().pop_back();
  }
  for (c10::IValue& result : call.take_results()) stack->push_back(std::move(result));
}

}  // namespace plimsoll::simulated
