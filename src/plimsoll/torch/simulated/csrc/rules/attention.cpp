// Fused attention kernels. They take memory for the softmax's statistics, for random state, and for
// accumulating gradients.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "rules/attention_choice.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Holds the sizes of an attention's query and key.
struct Shape {
  // Takes tensors with the dimensions batch, heads, rows, width.
  Shape(const Tensor& query, const Tensor& key)
      : batch(size(query, 0)),
        heads(size(query, 1)),
        rows(size(query, 2)),
        width(size(query, 3)),
        key_heads(size(key, 1)),
        key_rows(size(key, 2)) {}
  // Takes tensors in which the rows of all sequences lie one after the other. Their last
  // dimensions are rows, heads, width. `starts` holds the position of each sequence's first row,
  // and the end of the last sequence.
  Shape(const Tensor& query, const Tensor& key, const Tensor& starts, std::size_t longest,
        std::size_t longest_key)
      : batch(size(starts, 0) - 1),
        heads(size(query, query.dim() - 2)),
        rows(longest),
        width(size(query, query.dim() - 1)),
        key_heads(size(key, key.dim() - 2)),
        key_rows(longest_key) {}
  static std::size_t size(const Tensor& tensor, std::int64_t dimension) {
    return static_cast<std::size_t>(tensor.size(dimension));
  }
  std::size_t batch, heads, rows, width, key_heads, key_rows;
};

c10::IValue argument_named(const Call& call, std::string_view name) {
  const auto& parameters = call.op().schema().arguments();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name() == name) return call.argument(i);
  }
  return {};
}

bool is_causal(const Call& call) {
  const c10::IValue found = argument_named(call, "is_causal");
  return found.isBool() && found.toBool();
}

bool drops_weights(const Call& call) {
  const c10::IValue found = argument_named(call, "dropout_p");
  return found.isDouble() && found.toDouble() > 0;
}

void note_work(Call& call, AttentionKernel kernel, const Tensor& query, const Shape& shape,
               bool is_backward) {
  AttentionWork work;
  work.kernel = kernel;
  work.heads = static_cast<double>(shape.batch * shape.heads);
  work.rows = static_cast<double>(shape.rows);
  work.key_rows = static_cast<double>(shape.key_rows);
  work.width = static_cast<double>(shape.width);
  work.is_causal = is_causal(call);
  work.is_float = query.scalar_type() == at::kFloat;
  work.drops = drops_weights(call);
  work.is_backward = is_backward;
  if (kernel != AttentionKernel::efficient) call.use(Library::stacks);
  call.note_multiplication(work);
}

bool is_row_major(const Tensor& tensor) { return tensor.transpose(1, 2).is_contiguous(); }

// --- flash: flash_api.cpp ------------------------------------------------------------------------

std::size_t flash_width(std::size_t width) {
  return width <= 192 ? round_up(width, 32) : std::size_t{256};
}

void flash_forward(Call& call) {
  const Shape shape(call.tensor(0), call.tensor(1));
  note_work(call, AttentionKernel::flash, call.tensor(0), shape, false);
  const double dropout = call.argument(3).toDouble();
  call.allocate(0);
  call.allocate(1);
  if (dropout == 0) {
    // If there is one query row and several query heads share a key head, the kernel treats these
    // query heads as rows of one head.
    const bool swaps = shape.rows == 1 && shape.heads > shape.key_heads && shape.width % 8 == 0;
    const std::size_t heads = swaps ? shape.key_heads : shape.heads;
    const std::size_t rows = swaps ? shape.heads / shape.key_heads : shape.rows;
    const std::size_t key_block = shape.width <= 64 ? 256 : shape.width <= 128 ? 128 : 64;
    const auto processors = static_cast<std::size_t>(call.properties().multiprocessors);
    const std::size_t splits =
        flash_splits(shape.batch * heads * ((rows + 63) / 64), 2 * processors,
                     (shape.key_rows + key_block - 1) / key_block);
    if (splits > 1) {
      const std::size_t statistics = splits * shape.batch * heads * rows * kFloat;
      const std::size_t first = call.temporary(statistics);
      const std::size_t second = call.temporary(statistics * flash_width(shape.width));
      call.allocate_all();
      call.release(first);
      call.release(second);
      return;
    }
    call.allocate_all();
    return;
  }
  const std::size_t state = call.temporary(16);
  call.allocate(7);
  call.allocate(6);
  call.release(state);
}

void flash_backward(Call& call) {
  const Tensor gradient = call.tensor(0);
  const Tensor query = call.tensor(1);
  const Shape shape(query, call.tensor(2));
  note_work(call, AttentionKernel::flash, query, shape, true);
  const std::size_t bytes = bytes_of(query);
  if (!is_row_major(gradient)) call.temporary(bytes);
  if (!is_row_major(call.tensor(4))) call.temporary(bytes);
  call.allocate_all();
  const std::size_t rows = round_up(shape.rows, 128);
  call.temporary(shape.batch * shape.heads * rows * kFloat);
  call.temporary(shape.batch * rows * shape.heads * flash_width(shape.width) * kFloat);
  if (shape.heads != shape.key_heads) {
    const std::size_t expanded =
        shape.batch * shape.key_rows * shape.heads * shape.width * query.itemsize();
    call.temporary(expanded);
    call.temporary(expanded);
  }
}

// --- efficient: attention.cu and kernel_backward.h ---------------------------------------------

// The results include a seed and an offset, which stay on the host except while a graph is
// captured.
void efficient_forward(Call& call) {
  note_work(call, AttentionKernel::efficient, call.tensor(0), Shape(call.tensor(0), call.tensor(1)),
            false);
  call.infer();
  call.allocate(0);
  call.allocate(1);
  call.set_result(2, at::empty({}, at::TensorOptions().dtype(at::kLong)));
  call.set_result(3, at::empty({}, at::TensorOptions().dtype(at::kLong)));
  const Tensor value = call.tensor(2);
  // Above a width of 128, the output's float32 sums do not fit into the registers. A float32 output
  // holds the sums itself; any other output needs more memory for them.
  if (value.scalar_type() != at::kFloat && value.size(-1) > 128) {
    call.temporary(elements(call.allocate(0)) * kFloat);
  }
}

std::size_t efficient_workspace(const Shape& shape, bool is_float) {
  const std::size_t width = shape.width <= 64    ? 64
                            : shape.width <= 128 ? 128
                                                 : round_up(shape.width, 64);
  const std::size_t block = !is_float && shape.width > 64 && shape.width <= 128 ? 128 : 64;
  const std::size_t rows = round_up(shape.rows, block);
  std::size_t head = rows * width * kFloat + rows / block * 16;
  if (shape.width > 128) {
    head += rows / block * 16;
    // In half precision, the workspace also holds sums for the gradients of keys and values.
    if (!is_float) head += 2 * round_up(shape.key_rows, block) * width * kFloat;
  }
  return shape.batch * shape.heads * head;
}

void efficient_backward(Call& call) {
  const Tensor query = call.tensor(1);
  const Shape shape(query, call.tensor(2));
  note_work(call, AttentionKernel::efficient, query, shape, true);
  const bool is_float = query.scalar_type() == at::kFloat;
  const Tensor gradient = call.tensor(0);
  if (gradient.stride(-1) != 1) call.temporary(bytes_of(gradient));
  call.allocate_all();
  const std::size_t statistics = shape.batch * shape.heads * shape.rows * kFloat;
  std::size_t delta = 0;
  if (is_float) {
    const std::size_t product = call.temporary(elements(gradient) * kFloat);
    const std::size_t sums = call.temporary(statistics);
    delta = call.temporary(statistics);
    call.release(sums);
    call.release(product);
  } else {
    delta = call.temporary(statistics);
  }
  call.temporary(efficient_workspace(shape, is_float));
  call.release(delta);
}

// --- packed sequences, which lie one after the other -------------------------------------------

std::size_t length_at(const Call& call, std::size_t argument) {
  return static_cast<std::size_t>(call.argument(argument).toInt());
}

// Arguments: _flash_attention_forward(query, key, value, starts, key_starts, longest, longest_key,
// dropout, ...). If `starts` is None, the operands' dimensions are batch, rows, heads, width.
void packed_flash_forward(Call& call) {
  const Tensor starts = call.tensor(3);
  if (starts.defined()) {
    note_work(call, AttentionKernel::flash, call.tensor(0),
              Shape(call.tensor(0), call.tensor(1), starts, length_at(call, 5), length_at(call, 6)),
              false);
  }
  call.allocate_all();
}

// Arguments: (gradient, query, key, value, out, statistics, starts, key_starts, longest,
// longest_key, ...).
void packed_flash_backward(Call& call) {
  const Tensor query = call.tensor(1);
  const Tensor starts = call.tensor(6);
  for (const std::size_t operand : {0, 4}) copy_unless_contiguous(call, call.tensor(operand));
  call.allocate_all();
  if (!starts.defined()) return;
  const Shape shape(query, call.tensor(2), starts, length_at(call, 8), length_at(call, 9));
  note_work(call, AttentionKernel::flash, query, shape, true);
  const std::size_t rows = Shape::size(query, 0) + 128 * shape.batch;
  call.temporary(shape.heads * rows * kFloat);
  call.temporary(rows * shape.heads * flash_width(shape.width) * kFloat);
  if (shape.heads != shape.key_heads) {
    const std::size_t expanded =
        Shape::size(call.tensor(2), 0) * shape.heads * shape.width * query.itemsize();
    call.temporary(expanded);
    call.temporary(expanded);
  }
}

// Arguments: _efficient_attention_forward(query, key, value, bias, starts, key_starts, longest,
// ...).
void packed_efficient_forward(Call& call) {
  const Tensor query = call.tensor(0);
  const Tensor starts = call.tensor(4);
  if (starts.defined()) {
    note_work(call, AttentionKernel::efficient, query,
              Shape(query, call.tensor(1), starts, length_at(call, 6), length_at(call, 7)), false);
  }
  call.infer();
  call.allocate(0);
  call.allocate(1);
  call.set_result(2, at::empty({}, at::TensorOptions().dtype(at::kLong)));
  call.set_result(3, at::empty({}, at::TensorOptions().dtype(at::kLong)));
  const Tensor value = call.tensor(2);
  if (value.scalar_type() != at::kFloat && value.size(-1) > 128) {
    call.temporary(elements(call.allocate(0)) * kFloat);
  }
}

// Arguments: (gradient, query, key, value, bias, out, starts, key_starts, longest, longest_key,
// ...).
void packed_efficient_backward(Call& call) {
  const Tensor query = call.tensor(1);
  const Tensor starts = call.tensor(6);
  call.allocate_all();
  const bool is_float = query.scalar_type() == at::kFloat;
  const std::size_t heads = Shape::size(query, 2);
  const std::size_t delta =
      call.temporary(Shape::size(query, 0) * heads * round_up(Shape::size(query, 1), 1) * kFloat);
  if (starts.defined()) {
    const Shape shape(query, call.tensor(2), starts, length_at(call, 8), length_at(call, 9));
    note_work(call, AttentionKernel::efficient, query, shape, true);
    call.temporary(efficient_workspace(shape, is_float));
  }
  call.release(delta);
}

// --- cuDNN: MHA.cpp. Workspaces are fitted to recordings (cuDNN 9.19) ----------------------------

void cudnn_forward(Call& call) {
  const Shape shape(call.tensor(0), call.tensor(1));
  note_work(call, AttentionKernel::cudnn, call.tensor(0), shape, false);
  call.allocate(6);
  call.allocate(7);
  call.allocate(0);
  if (call.argument(4).toBool()) {
    call.allocate(1);
  } else {
    call.set_result(1, Tensor());
  }
  call.allocate_all();
  if (shape.rows > 1) call.temporary(256);
}

void cudnn_backward(Call& call) {
  const Tensor query = call.tensor(1);
  const Shape shape(query, call.tensor(2));
  note_work(call, AttentionKernel::cudnn, query, shape, true);
  call.allocate_all();
  // From version 9.5.1 on, cuDNN requires only that the gradient's last stride is 1. PyTorch copies
  // other gradients, such as the expanded gradient of a sum, whose strides are 0. PyTorch 2.9 and
  // later come with a newer cuDNN.
  const Tensor gradient = call.tensor(0);
  if (gradient.stride(-1) != 1) call.temporary(bytes_of(gradient));
  const std::size_t statistics = shape.batch * shape.heads * shape.rows * kFloat;
  std::size_t bytes = statistics * shape.width + statistics + 256;
  if (shape.heads != shape.key_heads) {
    bytes += 2 * shape.batch * shape.heads * shape.key_rows * shape.width * query.itemsize();
  }
  call.temporary(bytes);
}

const RuleTable kAttentionRules{
    {"_scaled_dot_product_flash_attention", flash_forward},
    {"_scaled_dot_product_flash_attention_backward", flash_backward},
    {"_flash_attention_forward", packed_flash_forward},
    {"_flash_attention_backward", packed_flash_backward},
    {"_efficient_attention_forward", packed_efficient_forward},
    {"_efficient_attention_backward", packed_efficient_backward},
    {"_scaled_dot_product_efficient_attention", efficient_forward},
    {"_scaled_dot_product_efficient_attention_backward", efficient_backward},
    {"_scaled_dot_product_cudnn_attention", cudnn_forward},
    {"_scaled_dot_product_cudnn_attention_backward", cudnn_backward},
};

}  // namespace

std::size_t flash_splits(std::size_t blocks, std::size_t processors, std::size_t key_blocks) {
  if (static_cast<double>(blocks) >= 0.8 * static_cast<double>(processors)) return 1;
  const std::size_t most = std::min<std::size_t>({128, processors, key_blocks});
  const auto per_split = [&](std::size_t splits) { return (key_blocks + splits - 1) / splits; };
  std::vector<double> efficiency;
  for (std::size_t splits = 1; splits <= most; ++splits) {
    const bool changes = splits == 1 || per_split(splits) != per_split(splits - 1);
    const double waves = static_cast<double>(blocks * splits) / static_cast<double>(processors);
    efficiency.push_back(changes ? waves / std::ceil(waves) : 0);
  }
  if (efficiency.empty()) return 1;
  const double best = *std::max_element(efficiency.begin(), efficiency.end());
  for (std::size_t splits = 1; splits <= most; ++splits) {
    if (efficiency[splits - 1] > 0 && efficiency[splits - 1] >= 0.85 * best) return splits;
  }
  return 1;
}

}  // namespace plimsoll::simulated
