// One hand-written kernel: the memory that it takes, its results, and its time.
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
  // Begins a kernel on the device of `on`, a tensor of any layout.
  LayoutKernel(const char* name, const at::Tensor& on);

  [[nodiscard]] std::uint32_t name() const { return name_; }
  // Takes the kernel's own memory until the object dies.
  [[nodiscard]] at::DataPtr temporary(std::size_t bytes) const;
  // Makes the host wait, as for a count of elements that the kernel finds.
  void wait() const { runtime().synchronize(device_index_); }
  // Queues the kernel, which reads and writes this many bytes.
  void launch(double bytes) const;
  void assume(std::string_view what) const { runtime().assume(name_, what); }

 private:
  std::uint32_t name_;
  c10::DeviceIndex device_index_;
  OperationScope scope_;
  DeviceScope device_;
};

// Computes the result on the host from tensors of the device, if their values are known and the
// budget has this many operations left; otherwise the description says what is known of it.
using Computation = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
void compute(const at::Tensor& result, const std::vector<at::Tensor>& of, double operations,
             const Computation& computation, const Description& otherwise = {});

// Note what the result's elements are: some of another tensor's elements, or finite if that is
// undefined. The second function notes that some are `padding`.
void note_as(const at::Tensor& result, const at::Tensor& of);
void note_padded(const at::Tensor& result, const at::Tensor& of, double padding);

inline double bytes_of_all(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
  }
  return bytes;
}

}  // namespace plimsoll::simulated
