// Kernels that libraries launch on plain addresses, bypassing PyTorch. plimsoll does not know what
// they compute, so the tensors that they write may have any values of their types.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "device/host_times.h"
#include "device/memory.h"
#include "device/runtime.h"
#include "execute/kernels.h"
#include "timing/timing.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

// plimsoll::launch_at: launches a kernel on the current device and stream. Addresses outside the
// device's tensors are ignored.
//
// `operands` holds all addresses at which the kernel reads or writes. `written` holds the addresses
// at which the kernel writes. At each address the kernel uses `most` bytes, or all bytes up to the
// end of the allocation if `most` is 0. `product` holds the rows, columns and terms of a matrix
// product, or is empty.
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
  state.pass_host_time(device, kPythonLaunchNs);
  const DeviceProperties& on = state.device(device).properties;
  double time = moving_ns(moved, on);
  if (product.size() == 3) {
    // The time is that of a product of half-precision numbers. Products of 8-bit and 4-bit numbers
    // take no longer.
    time = std::max(time,
                    multiplied_ns(Product{1, product[0], product[1], product[2], at::kHalf}, on));
  }
  state.launch(device, Work::compute, time);
}

}  // namespace

void add_launches_at_addresses(WrittenOut& kernels) {
  define("launch_at(int[] written, int[] operands, int most, float[] product) -> ()",
         TORCH_FN(launch_at));
}

}  // namespace plimsoll::simulated
