// Kernels that no PyTorch operation launches: Triton kernels of torch.compile, of programs and of
// libraries. plimsoll does not know what they compute, so the tensors that they write may have any
// values of their types.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "device/host_times.h"
#include "device/memory.h"
#include "device/runtime.h"
#include "device/tensors.h"
#include "execute/kernels.h"
#include "rules/attention_choice.h"
#include "timing/timing.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

// Marks the written tensors' values as unknown, and returns the device of the launch.
c10::DeviceIndex begin(at::TensorList written) {
  Runtime& state = runtime();
  const c10::DeviceIndex device = state.current_device();
  state.use(device);
  for (const at::Tensor& tensor : written) {
    check_access(tensor);
    if (allocation_of(tensor) == nullptr) continue;
    note_described(tensor, Description::of_type(tensor.scalar_type()));
  }
  state.pass_host_time(device, kPythonLaunchNs);
  return device;
}

// plimsoll::launch: launches a kernel on the current device and stream. The kernel reads and writes
// `bytes` in total.
//
// `product` describes a batched matrix product or is empty. It holds the number of matrices, the
// rows and columns of each result, and the terms of each sum (the inner dimension). `type` is the
// type of the numbers in both operands. `tile` holds seven numbers:
// - the rows, columns and terms of a block,
// - the number of buffers for operands,
// - the number of warps,
// - whether 32-bit numbers may be rounded to TF32,
// - whether the terms of one sum are adjacent in memory.
void launch(at::TensorList written, double bytes, at::ArrayRef<double> product,
            at::IntArrayRef tile, at::ScalarType type) {
  Runtime& state = runtime();
  const c10::DeviceIndex device = begin(written);
  const DeviceProperties& on = state.device(device).properties;
  double time = moving_ns(bytes, on);
  if (product.size() == 4 && tile.size() == 7) {
    const auto size = [&](std::size_t index) { return static_cast<double>(tile[index]); };
    const Product made{product[0], product[1], product[2], product[3], type, tile[5] != 0};
    const TemplateTile of{size(0), size(1), size(2), size(3), size(4), tile[6] != 0};
    // `bytes` may include data other than the product's matrices. The kernel moves these data
    // after it has multiplied a block, so their time is added.
    const double besides = std::max(0.0, bytes - made.bytes()) / on.bytes_per_ns;
    time = std::max(time, template_ns(made, of, on) + besides);
  }
  state.launch(device, Work::compute, time);
}

// plimsoll::launch_product: launches a library's own kernel for a matrix product, on the current
// device and stream. `sizes` holds the same four numbers as `product` of plimsoll::launch.
void launch_product(at::TensorList written, at::ArrayRef<double> sizes, at::ScalarType type) {
  TORCH_CHECK(sizes.size() == 4, "matrices, rows, columns, terms");
  Runtime& state = runtime();
  const c10::DeviceIndex device = begin(written);
  const Product product{sizes[0], sizes[1], sizes[2], sizes[3], type};
  state.launch(device, Work::compute, multiplied_ns(product, state.device(device).properties));
}

// plimsoll::launch_attention: launches an attention kernel on the current device and stream. The
// kernel takes as long as PyTorch's flash attention would.
void launch_attention(at::TensorList written, at::IntArrayRef shape, bool is_causal, bool drops,
                      bool is_backward) {
  TORCH_CHECK(shape.size() == 4, "heads of all sequences, rows, key rows, width");
  AttentionWork work;
  work.heads = static_cast<double>(shape[0]);
  work.rows = static_cast<double>(shape[1]);
  work.key_rows = static_cast<double>(shape[2]);
  work.width = static_cast<double>(shape[3]);
  work.is_causal = is_causal;
  work.drops = drops;
  work.is_backward = is_backward;
  Runtime& state = runtime();
  const c10::DeviceIndex device = begin(written);
  state.launch(device, Work::compute, multiplied_ns(work, state.device(device).properties));
}

// plimsoll::attention_splits: returns the number of parts into which flash attention splits the
// keys.
std::int64_t attention_splits(std::int64_t blocks, std::int64_t processors,
                              std::int64_t key_blocks) {
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  return static_cast<std::int64_t>(flash_splits(size(blocks), size(processors), size(key_blocks)));
}

}  // namespace

void add_launches(WrittenOut& kernels) {
  define(
      "launch(Tensor[] written, float bytes, float[] product, int[] tile, "
      "ScalarType type) -> ()",
      TORCH_FN(launch));
  define("launch_product(Tensor[] written, float[] sizes, ScalarType type) -> ()",
         TORCH_FN(launch_product));
  define(
      "launch_attention(Tensor[] written, int[] shape, bool is_causal, bool drops, "
      "bool is_backward) -> ()",
      TORCH_FN(launch_attention));
  own_operations().def("attention_splits(int blocks, int processors, int key_blocks) -> int",
                       TORCH_FN(attention_splits));
}

}  // namespace plimsoll::simulated
