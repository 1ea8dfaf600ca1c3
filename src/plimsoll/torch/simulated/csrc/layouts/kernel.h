// Helpers for the hand-written kernels of this folder. The helpers allocate a kernel's internal
// memory, queue the kernel on the stream, and note what is known about the values of its results.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "device/memory.h"
#include "device/runtime.h"
#include "values/description.h"

namespace plimsoll::simulated {

class LayoutKernel {
 public:
  // Until this object is destroyed, the thread's current operation is `name`, and its current
  // device is the device of the tensor `on`. That tensor may have any layout.
  LayoutKernel(const char* name, const at::Tensor& on);

  [[nodiscard]] std::uint32_t name() const { return name_; }
  // Allocates memory for the kernel's internal use. The memory is freed when the returned pointer
  // is destroyed.
  [[nodiscard]] at::DataPtr temporary(std::size_t bytes) const;
  // Makes the host wait for the stream. PyTorch waits, for example, before it reads how many
  // elements a kernel found.
  void wait() const { runtime().synchronize(device_index_); }
  // Queues the kernel, which reads and writes `bytes` in all.
  void launch(double bytes) const;
  void assume(std::string_view what) const { runtime().assume(name_, what); }

 private:
  std::uint32_t name_;
  c10::DeviceIndex device_index_;
  OperationScope scope_;
  DeviceScope device_;
};

using Computation = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
// Computes `result` on the host from the device tensors `of`, if their values are known and the
// budget has `operations` left. Otherwise gives the result the description `otherwise`.
void compute(const at::Tensor& result, const std::vector<at::Tensor>& of, double operations,
             const Computation& computation, const Description& otherwise = {});

// Notes that the result's elements are elements of `of`. If `of` is undefined, the result's
// elements may be any finite numbers.
void note_as(const at::Tensor& result, const at::Tensor& of);
// Notes that each element of the result is an element of `of` or equals `padding`.
void note_padded(const at::Tensor& result, const at::Tensor& of, double padding);

inline double bytes_of_all(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
  }
  return bytes;
}

}  // namespace plimsoll::simulated
