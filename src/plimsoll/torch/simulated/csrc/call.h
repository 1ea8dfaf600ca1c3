// One operation on simulated tensors: its arguments, the shapes of its results, and the memory that
// its kernel takes on the way.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory.h"
#include "operation.h"
#include "runtime.h"
#include "timing/timing.h"

namespace plimsoll::simulated {

class Call {
 public:
  Call(const c10::OperatorHandle& op, const OperationInfo& info, torch::jit::Stack& stack);

  [[nodiscard]] const c10::OperatorHandle& op() const { return op_; }
  [[nodiscard]] const OperationInfo& info() const { return info_; }
  [[nodiscard]] std::size_t argument_count() const { return count_; }
  [[nodiscard]] const c10::IValue& argument(std::size_t index) const { return arguments_[index]; }
  [[nodiscard]] const std::vector<c10::IValue>& arguments() const { return arguments_; }
  // All tensors of the arguments, those within lists too.
  [[nodiscard]] const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // Those that are allocated.
  [[nodiscard]] const std::vector<c10::IValue>& results() const { return results_; }
  // Undefined where the argument is none.
  [[nodiscard]] at::Tensor tensor(std::size_t index) const;
  [[nodiscard]] std::vector<at::Tensor> tensors(std::size_t index) const;
  [[nodiscard]] c10::DeviceIndex device() const { return device_; }
  [[nodiscard]] const DeviceProperties& properties() const {
    return runtime().device(device_).properties;
  }
  [[nodiscard]] int torch_version() const { return runtime().torch_version; }

  // The results' shapes, from the operation's Meta kernel; once.
  void infer();
  // A result's shape; undefined where there is none.
  [[nodiscard]] at::Tensor shape_of_result(std::size_t index);
  // Takes the memory of result `index`, if that was not done yet.
  at::Tensor allocate(std::size_t index);
  void allocate_all();
  // Gives a result another shape than its Meta kernel says.
  void set_shape(std::size_t index, c10::IValue shape);
  // Gives a result that takes no device memory: a tensor of the host, or none.
  void set_result(std::size_t index, const at::Tensor& tensor);
  // Memory of the kernel's own, until `release` or the call's end.
  std::size_t temporary(std::size_t bytes);
  void release(std::size_t temporary);
  void release_last() { release(temporaries_.size() - 1); }
  void assume(std::string_view what) { runtime().assume(info_.name, what); }
  // The same of the memory that its kernel takes inside, which may be as much as its tensors.
  void assume_memory(const char* what) { assumed_memory_ = what; }
  // Makes the host wait for the stream, as a copy to the host does.
  void synchronize() { runtime().synchronize(device_); }
  // What the kernels compute, besides moving arguments and results.
  void note_product(const Product& product);
  void note_convolution(const ConvolutionWork& work, Pass pass);
  void note_attention(const AttentionWork& work, bool is_backward);
  void note_reduction(const at::Tensor& tensor);
  // A contiguous copy of an operand, made first.
  void note_copy(const at::Tensor& tensor);
  void note_recurrent(const RecurrentWork& work, bool is_backward);
  [[nodiscard]] double flops() const { return flops_; }
  // Queues the kernel: its time follows from the work and the bytes it moves.
  void launch();

  // Leaves the results on the stack.
  void finish();
  // The same for an operation on the host: `make` turns the shape of a fresh result into a tensor.
  void finish_on_host(const std::function<at::Tensor(const at::Tensor&)>& make);

 private:
  void find_device();
  [[noreturn]] void refuse(const char* why) const;
  void check_devices() const;
  void count_writes();
  void check_indices() const;
  // Of arguments and results.
  [[nodiscard]] std::uint64_t tensor_bytes() const;

  const c10::OperatorHandle& op_;
  const OperationInfo& info_;
  torch::jit::Stack& stack_;
  std::size_t count_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> inputs_;
  c10::DeviceIndex device_ = 0;
  bool is_inferred_ = false;
  torch::jit::Stack shapes_;
  std::vector<c10::IValue> results_;
  std::vector<bool> is_allocated_;
  std::vector<at::DataPtr> temporaries_;
  double flops_ = 0;
  double computed_ns_ = 0;
  double besides_ns_ = 0;  // of what else it queues
  const char* assumed_memory_ = nullptr;
};

// The kernel for every operation on CUDA tensors.
void run_simulated(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace plimsoll::simulated
