// One kernel that is written out: the memory that it takes, what it writes, and how long it takes.
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
  // `on`: a tensor of the device; of any layout.
  LayoutKernel(const char* name, const at::Tensor& on);

  [[nodiscard]] std::uint32_t name() const { return name_; }
  // Memory of its own, until the object dies.
  [[nodiscard]] at::DataPtr temporary(std::size_t bytes) const;
  // Makes the host wait, as for a number of elements that is found.
  void wait() const { runtime().synchronize(device_index_); }
  // Queues it: it reads and writes so many bytes.
  void launch(double bytes) const;
  void assume(std::string_view what) const { runtime().assume(name_, what); }

 private:
  std::uint32_t name_;
  c10::DeviceIndex device_index_;
  OperationScope scope_;
  DeviceScope device_;
};

// Writes what is computed of tensors of the device, on the host, where their values are known and
// the budget has so many operations left; else it is what the description says.
using Computation = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
void compute(const at::Tensor& result, const std::vector<at::Tensor>& of, double operations,
             const Computation& computation, const Description& otherwise = {});

// Notes that the elements are some of those of another tensor, or finite where there is none. The
// second notes that some are `padding`.
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
