// One operation on simulated tensors as data: its arguments, the shapes of its results, and what
// its kernel does, step by step. Rules append the steps; execute/run.h does them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "device/runtime.h"
#include "device/tensors.h"
#include "operation/multiplication.h"
#include "operation/operation.h"
#include "operation/steps.h"

namespace plimsoll::simulated {

// Work that a kernel does on the way, besides its own.
struct Besides {
  enum class Kind : std::uint8_t { reduction, contiguous_copy } kind;
  at::Tensor of;
};

class Call {
 public:
  // Takes the arguments from the stack.
  Call(const c10::OperatorHandle& op, const OperationInfo& info, torch::jit::Stack& stack);

  [[nodiscard]] const c10::OperatorHandle& op() const { return op_; }
  [[nodiscard]] const OperationInfo& info() const { return info_; }
  [[nodiscard]] std::size_t argument_count() const { return arguments_.size(); }
  [[nodiscard]] const c10::IValue& argument(std::size_t index) const { return arguments_[index]; }
  [[nodiscard]] const std::vector<c10::IValue>& arguments() const { return arguments_; }
  // All tensors of the arguments, those within lists too.
  [[nodiscard]] const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // Undefined where the argument is none.
  [[nodiscard]] at::Tensor tensor(std::size_t index) const;
  [[nodiscard]] std::vector<at::Tensor> tensors(std::size_t index) const;
  [[nodiscard]] c10::DeviceIndex device() const { return device_; }
  [[nodiscard]] const DeviceProperties& properties() const {
    return runtime().device(device_).properties;
  }

  // The results' shapes, from the operation's Meta kernel; once.
  void infer();
  // A result's shape; undefined where there is none.
  [[nodiscard]] at::Tensor shape_of_result(std::size_t index);
  [[nodiscard]] const torch::jit::Stack& shapes() const { return shapes_; }
  // Gives a result another shape than its Meta kernel says.
  void set_shape(std::size_t index, c10::IValue shape);
  // Those that are there by now.
  [[nodiscard]] const std::vector<c10::IValue>& results() const { return results_; }
  [[nodiscard]] std::vector<c10::IValue> take_results() { return std::move(results_); }
  // Gives a result that no step allocates.
  void set_result(std::size_t index, c10::IValue result);

  // Appends steps.

  // Returns the result as it will be, of sizes and strides alone.
  at::Tensor allocate(std::size_t index);
  void allocate_all();
  // Memory of the kernel's own, until `release` or the call's end.
  std::size_t temporary(std::size_t bytes);
  void take_uncertain(const UncertainMemory& memory) { steps_.emplace_back(TakeUncertain{memory}); }
  void release(std::size_t number) { steps_.emplace_back(Release{number}); }
  void release_last() { release(kept_.size() - 1); }
  void take_workspace(const TakeWorkspace& workspace) { steps_.emplace_back(workspace); }
  void empty_cache() { steps_.emplace_back(EmptyCache{}); }
  void synchronize() { steps_.emplace_back(Wait{}); }
  void assume(std::string_view what) { steps_.emplace_back(Assume{what}); }
  void then(std::function<void(Call&)> decide) { steps_.emplace_back(Then{std::move(decide)}); }
  // Runs other operations and keeps what they return, until `release` or the call's end.
  std::size_t run(std::function<std::vector<at::Tensor>()> operations);
  [[nodiscard]] std::vector<Step> take_steps() { return std::exchange(steps_, {}); }

  // Memory, or results of `run`, under a number whose step is done.
  struct Kept {
    at::DataPtr memory;
    std::vector<at::Tensor> tensors;
  };
  [[nodiscard]] std::vector<Kept>& kept() { return kept_; }
  // A tensor that `run` returned.
  [[nodiscard]] at::Tensor outcome(std::size_t number) const { return kept_[number].tensors[0]; }

  // Notes a library that the kernel is from, which is loaded when it is needed first.
  void use(Library library) { libraries_.push_back(library); }
  [[nodiscard]] const std::vector<Library>& libraries() const { return libraries_; }
  // Notes that the memory which the kernel takes inside may be as much as its tensors.
  void assume_memory(const char* what) { assumed_memory_ = what; }
  [[nodiscard]] const char* assumed_memory() const { return assumed_memory_; }
  // Notes what the kernel computes, besides moving arguments and results.
  void note_multiplication(const Multiplication& multiplication) {
    multiplications_.push_back(multiplication);
  }
  [[nodiscard]] const std::vector<Multiplication>& multiplications() const {
    return multiplications_;
  }
  void note_reduction(const at::Tensor& of) { besides_.push_back({Besides::Kind::reduction, of}); }
  // A contiguous copy of an operand, made first.
  void note_copy(const at::Tensor& of) { besides_.push_back({Besides::Kind::contiguous_copy, of}); }
  [[nodiscard]] const std::vector<Besides>& besides() const { return besides_; }

 private:
  void find_device();
  [[noreturn]] void refuse(const char* why) const;

  const c10::OperatorHandle& op_;
  const OperationInfo& info_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> inputs_;
  c10::DeviceIndex device_ = 0;
  bool is_inferred_ = false;
  torch::jit::Stack shapes_;
  std::vector<c10::IValue> results_;
  std::vector<bool> is_decided_;  // of each result: a step allocates it, or it is given
  std::vector<Step> steps_;
  std::vector<Kept> kept_;
  std::vector<Multiplication> multiplications_;
  std::vector<Besides> besides_;
  std::vector<Library> libraries_;
  const char* assumed_memory_ = nullptr;
};

// Bytes of a call's tensors as its kernel touches them.
struct Touched {
  double whole = 0;
  double caches = 0;  // of which it touches some rows: as much as of all other tensors, at most

  [[nodiscard]] double bytes() const { return whole + std::min(caches, whole); }
};

// Visits the tensors on devices of all results that are new.
template <typename Visit>
void for_new_results(const Call& call, const Visit& visit) {
  for (std::size_t i = 0; i < call.results().size(); ++i) {
    if (call.info().results[i].kind != Result::Kind::fresh) continue;
    for_tensors(call.results()[i], [&](const at::Tensor& tensor) {
      if (is_simulated(tensor)) visit(tensor);
    });
  }
}

}  // namespace plimsoll::simulated
