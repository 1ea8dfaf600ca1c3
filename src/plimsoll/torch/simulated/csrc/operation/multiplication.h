// Multiplications of kernels: matrix products, and operations made of them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <variant>

namespace plimsoll::simulated {

// `batch` products of a matrix of `rows` x `terms` and one of `terms` x `columns`.
struct Product {
  double batch = 1;
  double rows = 0;
  double columns = 0;
  double terms = 0;
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  // Rows begin at multiples of this many bytes; tensor cores load 16 bytes at a time.
  std::int64_t alignment = 16;
  double right_bytes = 0;  // of the second operand, if its numbers have fewer bits

  [[nodiscard]] double flops() const { return 2 * batch * rows * columns * terms; }
  [[nodiscard]] double bytes() const {
    const double item = static_cast<double>(c10::elementSize(type));
    const double right = right_bytes > 0 ? right_bytes : batch * item * terms * columns;
    return right + batch * item * (rows * terms + rows * columns);
  }
};

enum class Pass : std::uint8_t { forward, input_gradient, weight_gradient };

// A convolution's sizes. A transposed convolution is the gradient of a plain one's input.
struct ConvolutionWork {
  double inputs = 0;   // positions of the input, of all images
  double outputs = 0;  // positions of the output, of all images
  double channels = 0;
  double out_channels = 0;
  double taps = 0;  // of the convolution's kernel: 9 for 3 x 3
  double groups = 1;
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  bool channels_last = false;
  Pass pass = Pass::forward;
};

enum class AttentionKernel : std::uint8_t { flash, efficient, cudnn };

struct AttentionWork {
  AttentionKernel kernel = AttentionKernel::flash;
  double heads = 0;  // heads of all sequences
  double rows = 0;   // rows of queries
  double key_rows = 0;
  double width = 0;
  bool is_causal = false;
  bool is_float = false;
  bool drops = false;  // drops some of the weights at random
  bool is_backward = false;
};

// cuDNN's recurrent layers, which multiply at each time step.
struct RecurrentWork {
  double layers = 1;
  double directions = 1;
  double steps = 0;
  double batch = 0;
  double input = 0;
  double hidden = 0;
  double gates = 1;  // of a cell: 4 for LSTM
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  bool is_backward = false;
};

using Multiplication = std::variant<Product, ConvolutionWork, AttentionWork, RecurrentWork>;

}  // namespace plimsoll::simulated
