// Kernels that no operation of PyTorch's launches: Triton's, those of compilers and of programs.
// What they compute is not known, so what they write is described, and not computed.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

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

// Of a product: a compiler's kernel is taken to be somewhat slower than cuBLAS's.
constexpr double kOfCublas = 1.1;

// From the sizes of both operands and the result: they may be handed over transposed.
double product_of(at::TensorList operands, const DeviceProperties& on) {
  const auto numbers = [&](std::size_t index) {
    return std::max(1.0, static_cast<double>(operands[index].numel()));
  };
  Product product;
  product.batch = operands[0].dim() > 2 ? static_cast<double>(operands[0].size(0)) : 1;
  const double a = numbers(0), b = numbers(1), c = numbers(2);
  product.rows = std::sqrt(a * c / b / product.batch);
  product.terms = std::sqrt(a * b / c / product.batch);
  product.columns = std::sqrt(b * c / a / product.batch);
  product.type = operands[0].scalar_type();
  product.allows_tf32 = at::globalContext().allowTF32CuBLAS();
  return kOfCublas * product_ns(product, on);
}

// plimsoll::launch: on the current device and stream; `bytes` of tensors are read and written, and
// it makes a product, if any are named: of the first two, the third.
void launch(at::TensorList written, at::TensorList multiplied, double bytes) {
  Runtime& state = runtime();
  const c10::DeviceIndex device = state.current_device();
  state.use(device);
  for (const at::Tensor& tensor : written) {
    if (allocation_of(tensor) == nullptr) continue;
    note_described(tensor, Description::of_type(tensor.scalar_type()));
  }
  state.pass_host_time(device, kHostNs);
  const DeviceProperties& on = state.device(device).properties;
  double time = moving_ns(bytes, on);
  if (multiplied.size() == 3) time = std::max(time, product_of(multiplied, on));
  state.launch(device, Work::compute, time);
}

}  // namespace

void add_launches(WrittenOut& kernels) {
  kernels.own().def("launch(Tensor[] written, Tensor[] multiplied, float bytes) -> ()",
                    torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(launch)));
}

}  // namespace plimsoll::simulated
