// Communication between processes, of which there is one: torch's `fake` process group stands for
// the others, and answers at once. See simulated/distributed.py.
#include "collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace plimsoll::simulated {
namespace {

// Done, with results; that of the `fake` process group has none, which DDP's hooks ask for.
class Done final : public c10d::Work {
 public:
  explicit Done(std::vector<at::Tensor> results) : results_(std::move(results)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
};

// Takes an operation's arguments off the stack; versions of PyTorch differ in the last of them.
std::vector<c10::IValue> take_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  return torch::jit::pop(stack, op.schema().arguments().size());
}

void finish(torch::jit::Stack& stack, const c10::IValue& result) {
  const auto results =
      result.isTensor() ? std::vector<at::Tensor>{result.toTensor()} : result.toTensorVector();
  stack.push_back(result);
  stack.emplace_back(c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<Done>(results)));
}

// (tensors, ...)
void allreduce(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  finish(*stack, take_arguments(op, *stack)[0]);
}

// (output, input, ...): NCCL takes any shapes, the `fake` group only some.
void allgather_base(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> arguments = take_arguments(op, *stack);
  const at::AutoDispatchBelowAutograd guard;
  const at::Tensor output = arguments[0].toTensor();
  const at::Tensor part = arguments[1].toTensor().reshape({-1});
  if (part.numel() != 0) output.view({-1, part.numel()}).copy_(part);
  finish(*stack, output);
}

// When DDP's events happened; the host knows.
class HostTimer final : public c10d::Timer {
 public:
  std::optional<std::int64_t> measureDifference(Event start, Event end) override {
    const auto began = getTimestamp(start);
    const auto ended = getTimestamp(end);
    if (!began || !ended) return std::nullopt;
    return *ended - *began;
  }
};

}  // namespace

void register_collectives() {
  c10d::TimerRegistry()->Register(
      c10::DeviceType::CUDA, [](c10::Device) { return std::make_unique<HostTimer>(); },
      c10::REGISTRY_PREFERRED);
  static auto* const c10d =
      new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  c10d->impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&allreduce>());
  c10d->impl("_allgather_base_", torch::CppFunction::makeFromBoxedFunction<&allgather_base>());
}

}  // namespace plimsoll::simulated
