// The multiplications that kernels do: matrix products, and the operations that consist of matrix
// products (convolution, attention, recurrent layers).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <variant>

namespace plimsoll::simulated {

// `batch` matrix products. Each multiplies a `rows` x `terms` matrix by a `terms` x `columns` one.
struct Product {
  double batch = 1;
  double rows = 0;
  double columns = 0;
  double terms = 0;
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  // Each row's address is a multiple of this many bytes. Tensor cores load 16 bytes at a time.
  std::int64_t alignment = 16;
  // The second operand's bytes if its type is smaller than `type`; otherwise 0.
  double right_bytes = 0;

  [[nodiscard]] double flops() const { return 2 * batch * rows * columns * terms; }
  [[nodiscard]] double bytes() const {
    const double item = static_cast<double>(c10::elementSize(type));
    const double right = right_bytes > 0 ? right_bytes : batch * item * terms * columns;
    return right + batch * item * (rows * terms + rows * columns);
  }
};

enum class Pass : std::uint8_t { forward, input_gradient, weight_gradient };

// The work of one pass of a convolution. A transposed convolution counts as the plain convolution
// that does the same work: its forward pass counts as `input_gradient`, and its input gradient
// counts as `forward`.
struct ConvolutionWork {
  double inputs = 0;   // positions in one input image, times the number of images
  double outputs = 0;  // positions in one output image, times the number of images
  double channels = 0;
  double out_channels = 0;
  double taps = 0;  // numbers in the convolution's kernel: 9 for 3 x 3
  double groups = 1;
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  bool channels_last = false;
  Pass pass = Pass::forward;
};

enum class AttentionKernel : std::uint8_t { flash, efficient, cudnn };

struct AttentionWork {
  AttentionKernel kernel = AttentionKernel::flash;
  double heads = 0;  // the heads of all sequences together
  double rows = 0;   // rows of the query
  double key_rows = 0;
  double width = 0;
  bool is_causal = false;
  bool is_float = false;
  bool drops = false;  // applies dropout to the attention weights
  bool is_backward = false;
};

// The work of cuDNN's recurrent layers, which multiply matrices at each time step.
struct RecurrentWork {
  double layers = 1;
  double directions = 1;
  double steps = 0;
  double batch = 0;
  double input = 0;
  double hidden = 0;
  double gates = 1;  // the gates of a cell: 4 for LSTM
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  bool is_backward = false;
};

using Multiplication = std::variant<Product, ConvolutionWork, AttentionWork, RecurrentWork>;

}  // namespace plimsoll::simulated
