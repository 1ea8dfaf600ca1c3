// Describes one call of an operation on simulated tensors: its arguments, its results' shapes, and
// its kernel's steps. Rules append the steps; execute/run.h runs them.
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

// Work that a kernel does besides its main work.
struct Besides {
  enum class Kind : std::uint8_t { reduction, contiguous_copy } kind;
  at::Tensor of;
};

class Call {
 public:
  // Pops the operation's arguments from the stack.
  Call(const c10::OperatorHandle& op, const OperationInfo& info, torch::jit::Stack& stack);

  [[nodiscard]] const c10::OperatorHandle& op() const { return op_; }
  [[nodiscard]] const OperationInfo& info() const { return info_; }
  [[nodiscard]] std::size_t argument_count() const { return arguments_.size(); }
  [[nodiscard]] const c10::IValue& argument(std::size_t index) const { return arguments_[index]; }
  [[nodiscard]] const std::vector<c10::IValue>& arguments() const { return arguments_; }
  // Returns all tensors among the arguments, including those inside lists.
  [[nodiscard]] const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // Returns an argument as a tensor; undefined if the argument is None.
  [[nodiscard]] at::Tensor tensor(std::size_t index) const;
  [[nodiscard]] std::vector<at::Tensor> tensors(std::size_t index) const;
  [[nodiscard]] c10::DeviceIndex device() const { return device_; }
  [[nodiscard]] const DeviceProperties& properties() const {
    return runtime().device(device_).properties;
  }

  // Infers the results' shapes with the operation's Meta kernel. Further calls do nothing.
  void infer();
  // Returns the shape of a result; undefined if the operation has no such result.
  [[nodiscard]] at::Tensor shape_of_result(std::size_t index);
  [[nodiscard]] const torch::jit::Stack& shapes() const { return shapes_; }
  // Sets the shape of a result, in place of the one that the Meta kernel gives.
  void set_shape(std::size_t index, c10::IValue shape);
  // Returns the results that exist so far.
  [[nodiscard]] const std::vector<c10::IValue>& results() const { return results_; }
  [[nodiscard]] std::vector<c10::IValue> take_results() { return std::move(results_); }
  // Sets a result that exists already, so that no step allocates it.
  void set_result(std::size_t index, c10::IValue result);

  // The next functions append steps, which are run later.

  // Allocates a result. Returns the result's shape, a tensor with sizes and strides but no memory.
  at::Tensor allocate(std::size_t index);
  void allocate_all();
  // Allocates memory for the kernel's internal use. Returns the memory's index in kept(). `release`
  // with this index frees the memory. Without `release`, it is freed at the end of the call.
  std::size_t temporary(std::size_t bytes);
  void take_uncertain(const UncertainMemory& memory) { steps_.emplace_back(TakeUncertain{memory}); }
  void release(std::size_t number) { steps_.emplace_back(Release{number}); }
  void release_last() { release(kept_.size() - 1); }
  void take_workspace(const TakeWorkspace& workspace) { steps_.emplace_back(workspace); }
  void empty_cache() { steps_.emplace_back(EmptyCache{}); }
  void synchronize() { steps_.emplace_back(Wait{}); }
  void assume(std::string_view what) { steps_.emplace_back(Assume{what}); }
  void then(std::function<void(Call&)> decide) { steps_.emplace_back(Then{std::move(decide)}); }
  // Runs other operations and keeps their results. Returns the index of these results in kept().
  // `release` with this index frees them. Without `release`, they are freed at the end of the call.
  std::size_t run(std::function<std::vector<at::Tensor>()> operations);
  [[nodiscard]] std::vector<Step> take_steps() { return std::exchange(steps_, {}); }

  // A call of `temporary` keeps `memory`. A call of `run` keeps `tensors`.
  struct Kept {
    at::DataPtr memory;
    std::vector<at::Tensor> tensors;
  };
  [[nodiscard]] std::vector<Kept>& kept() { return kept_; }
  // Returns the first tensor that the operations of `run` returned.
  [[nodiscard]] at::Tensor outcome(std::size_t number) const { return kept_[number].tensors[0]; }

  // Notes that the kernel comes from a library, which is loaded at its first use.
  void use(Library library) { libraries_.push_back(library); }
  [[nodiscard]] const std::vector<Library>& libraries() const { return libraries_; }
  // Notes that the kernel's internal memory is unknown, but may be as large as the call's tensors.
  void assume_memory(const char* what) { assumed_memory_ = what; }
  [[nodiscard]] const char* assumed_memory() const { return assumed_memory_; }
  // Notes a multiplication that the kernel does. The multiplication's time does not include reading
  // the arguments and writing the results, which is counted separately.
  void note_multiplication(const Multiplication& multiplication) {
    multiplications_.push_back(multiplication);
  }
  [[nodiscard]] const std::vector<Multiplication>& multiplications() const {
    return multiplications_;
  }
  void note_reduction(const at::Tensor& of) { besides_.push_back({Besides::Kind::reduction, of}); }
  // Notes that the kernel first makes a contiguous copy of an operand.
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
  std::vector<bool> is_decided_;  // for each result: true once it is set or a step allocates it
  std::vector<Step> steps_;
  std::vector<Kept> kept_;
  std::vector<Multiplication> multiplications_;
  std::vector<Besides> besides_;
  std::vector<Library> libraries_;
  const char* assumed_memory_ = nullptr;
};

// How many bytes the kernel of a call reads or writes in the call's tensors.
struct Touched {
  double whole = 0;
  double caches = 0;  // the full size of the tensors that the kernel may touch only in part

  [[nodiscard]] double bytes() const { return whole + std::min(caches, whole); }
};

// Calls `visit` with each device tensor among the results that the call allocated.
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
