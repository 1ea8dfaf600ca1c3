#include "layouts/kernel.h"

#include <algorithm>

#include "device/virtual.h"
#include "timing/timing.h"
#include "values/budget.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

// The host's time for a call of a sparse library. Estimated, not measured.
constexpr double kHostNs = 15000;

}  // namespace

LayoutKernel::LayoutKernel(const char* name, const at::Tensor& on)
    : name_(runtime().name(name)),
      device_index_(on.device().index()),
      scope_(name_, current_operation().role),
      device_(device_index_) {}

at::DataPtr LayoutKernel::temporary(std::size_t bytes) const {
  const OperationScope scope(name_, Role::temporary);
  return take_memory(bytes);
}

void LayoutKernel::launch(double bytes) const {
  Runtime& state = runtime();
  state.pass_host_time(device_index_, kHostNs);
  state.launch(device_index_, Work::compute,
               moving_ns(bytes, state.device(device_index_).properties));
}

void compute(const at::Tensor& result, const std::vector<at::Tensor>& of, double operations,
             const Computation& computation, const Description& otherwise) {
  if (result.numel() == 0 || allocation_of(result) == nullptr) return;
  Source worst = Source::computed;
  bool is_known = true;
  for (const at::Tensor& tensor : of) {
    worst = std::max(worst, source_of(tensor));
    is_known = is_known && can_be_read(tensor);
  }
  if (is_known && Budget::instance().take_operations(operations)) {
    const WithContentsScope real;
    std::vector<at::Tensor> values;
    for (const at::Tensor& tensor : of) values.push_back(read_values(tensor));
    const bool are_all = std::all_of(values.begin(), values.end(),
                                     [](const at::Tensor& tensor) { return tensor.defined(); });
    const at::Tensor to = are_all ? writable_values(result, true) : at::Tensor();
    if (to.defined()) {
      to.copy_(computation(values));
      note_values(result, std::min(worst, Source::assumed));
      return;
    }
  }
  note_described(result, otherwise);
}

void note_as(const at::Tensor& result, const at::Tensor& of) {
  if (result.numel() == 0) return;
  note_described(result, of.defined() ? known_of(of).description : Description{});
}

void note_padded(const at::Tensor& result, const at::Tensor& of, double padding) {
  if (result.numel() == 0) return;
  note_described(result, join(known_of(of).description, Description::constant(padding)));
}

}  // namespace plimsoll::simulated
