// Kernels that no operation of PyTorch's launches: Triton's, those of compilers and of programs.
// What they compute is not known, so what they write is described, and not computed.
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>

#include "memory.h"
#include "runtime.h"
#include "tensors.h"
#include "timing/timing.h"
#include "values/contents.h"
#include "written_out.h"

namespace plimsoll::simulated {
namespace {

// What a launch from Python takes of the host. Estimated, not measured.
constexpr double kHostNs = 9000;

// plimsoll::launch: on the current device and stream; `bytes` of tensors are read and written.
void launch(at::TensorList written, double bytes) {
  Runtime& state = runtime();
  const c10::DeviceIndex device = state.current_device();
  state.use(device);
  for (const at::Tensor& tensor : written) {
    if (allocation_of(tensor) == nullptr) continue;
    note_described(tensor, Description::of_type(tensor.scalar_type()));
  }
  state.pass_host_time(device, kHostNs);
  state.launch(device, Work::compute, moving_ns(bytes, state.device(device).properties));
}

}  // namespace

void add_launches(WrittenOut& kernels) {
  kernels.own().def("launch(Tensor[] written, float bytes) -> ()",
                    torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(launch)));
}

}  // namespace plimsoll::simulated
