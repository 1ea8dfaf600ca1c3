// Kernels that no operation of PyTorch's launches: Triton's, those of compilers, of programs and of
// libraries. What they compute is not known, so what they write is described, and not computed.
#include <ATen/core/Tensor.h>

#include <algorithm>

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
//
// `product`, unless empty: of how many matrices, rows, columns and terms; `tile`: rows, columns and
// terms of a block, buffers, warps, whether numbers of 32 bits may be rounded, and whether terms
// lie side by side; both of `type`.
void launch(at::TensorList written, double bytes, at::ArrayRef<double> product,
            at::IntArrayRef tile, at::ScalarType type) {
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
  if (product.size() == 4 && tile.size() == 7) {
    const auto size = [&](std::size_t index) { return static_cast<double>(tile[index]); };
    const Product made{product[0], product[1], product[2], product[3], type, tile[5] != 0};
    const TemplateTile of{size(0), size(1), size(2), size(3), size(4), tile[6] != 0};
    // What else is read and written, once a block is multiplied, comes on top.
    const double besides = std::max(0.0, bytes - made.bytes()) / on.bytes_per_ns;
    time = std::max(time, template_ns(made, of, on) + besides);
  }
  state.launch(device, Work::compute, time);
}

// plimsoll::launch_at: the same of a library's kernel, which is given addresses of the current
// device alone. What lies elsewhere is no tensor on it.
//
// From each address on it reads or writes `most` bytes, or all there are. `product`, unless empty:
// of how many rows, columns and terms.
void launch_at(at::IntArrayRef written, at::IntArrayRef operands, std::int64_t most,
               at::ArrayRef<double> product) {
  Runtime& state = runtime();
  const c10::DeviceIndex device = state.current_device();
  state.use(device);
  const auto each = [&](at::IntArrayRef addresses, auto act) {
    for (const std::int64_t at : addresses) {
      const auto address = static_cast<std::uint64_t>(at);
      Allocation* const allocation = allocation_at(device, address);
      if (allocation == nullptr) continue;
      const std::size_t begin = address - allocation->address;
      const std::size_t rest = allocation->size - begin;
      act(*allocation, begin, most > 0 ? std::min(rest, static_cast<std::size_t>(most)) : rest);
    }
  };
  each(written, [](Allocation& allocation, std::size_t begin, std::size_t size) {
    note_written(allocation, begin, begin + size);
  });
  double moved = 0;
  each(operands, [&](const Allocation&, std::size_t, std::size_t size) {
    moved += static_cast<double>(size);
  });
  state.pass_host_time(device, kHostNs);
  const DeviceProperties& on = state.device(device).properties;
  double time = moving_ns(moved, on);
  if (product.size() == 3) {
    // Numbers of eight bits and of four are multiplied at least as fast as halves.
    time = std::max(time, product_ns({1, product[0], product[1], product[2], at::kHalf}, on));
  }
  state.launch(device, Work::compute, time);
}

}  // namespace

void add_launches(WrittenOut& kernels) {
  kernels.own().def(
      "launch(Tensor[] written, float bytes, float[] product, int[] tile, "
      "ScalarType type) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(launch)));
  kernels.own().def(
      "launch_at(int[] written, int[] operands, int most, float[] product) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(launch_at)));
}

}  // namespace plimsoll::simulated
