// How long operations take: on the GPU, by kind of kernel, and on the host that calls them.
//
// Numbers of kernels were measured on an H200, one operation at a time (benchmarks/kernels.py), and
// are carried to other GPUs by their rates: of memory, of multiplications, of everything else.
// Those of the host are of several (benchmarks/host.py, steps.py). Times are in ns, work in bytes
// and numbers; nothing here depends on the values of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "../runtime.h"

namespace plimsoll::simulated {

class Call;
struct KernelTime;

// The H200 on which this was measured: outside its tensor cores, on them, and what of its cache
// serves a kernel's operands.
constexpr double kH200FlopsPerNs = 66.9e3;
constexpr double kH200TensorFlopsPerNs = 989e3;
constexpr double kCacheBytes = 40e6;

// What a launch from Python takes of the host, in ns. Estimated, not measured.
constexpr double kPythonLaunchNs = 9000;

// `batch` products of a matrix of `rows` x `terms` and one of `terms` x `columns`.
struct Product {
  double batch = 1;
  double rows = 0;
  double columns = 0;
  double terms = 0;
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  // Rows begin at multiples of so many bytes; tensor cores are fed with 16 at a time.
  std::int64_t alignment = 16;

  [[nodiscard]] double flops() const { return 2 * batch * rows * columns * terms; }
  [[nodiscard]] double bytes() const {
    const double item = static_cast<double>(c10::elementSize(type));
    return batch * item * (rows * terms + terms * columns + rows * columns);
  }
};
double product_ns(const Product& product, const DeviceProperties& on);

// What a template of PyTorch's compiler works out at a time: a block of the result, terms by terms.
struct TemplateTile {
  double rows, columns, terms;
  double buffers;  // that operands are loaded into ahead
  double warps;
  bool is_along_terms;  // the numbers of both operands that are summed up are neighbours
};
double template_ns(const Product& product, const TemplateTile& tile, const DeviceProperties& on);

enum class Pass : std::uint8_t { forward, input_gradient, weight_gradient };

// A convolution by what it multiplies. A transposed one is the gradient of a plain one's input.
struct ConvolutionWork {
  double inputs = 0;   // positions of the input, of all images
  double outputs = 0;  // positions of the output
  double channels = 0;
  double out_channels = 0;
  double taps = 0;  // of the kernel: 9 for 3 x 3
  double groups = 1;
  at::ScalarType type = at::kFloat;
  bool allows_tf32 = false;
  bool channels_last = false;
};
double convolution_ns(const ConvolutionWork& work, Pass pass, const DeviceProperties& on);

enum class AttentionKernel : std::uint8_t { flash, efficient, cudnn };

struct AttentionWork {
  AttentionKernel kernel = AttentionKernel::flash;
  double heads = 0;  // of all sequences
  double rows = 0;   // of queries
  double key_rows = 0;
  double width = 0;
  bool is_causal = false;
  bool is_float = false;
  bool drops = false;  // some of the weights, at random
};
double attention_ns(const AttentionWork& work, bool is_backward, const DeviceProperties& on);

// What cuDNN's recurrent layers do step after step.
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
};
double recurrent_ns(const RecurrentWork& work, bool is_backward, const DeviceProperties& on);

// A sum over a tensor's images, as part of another operation.
double reduction_ns(const at::Tensor& tensor, const DeviceProperties& on);

// A copy between host and device, on the GPU.
double transfer_ns(double bytes, bool is_pinned, bool to_device, const DeviceProperties& on);

// What kernels wait for operands and results that lie in the host's memory: the bus carries both
// ways at once.
double bus_ns(const Call& call);

// A copy from one device to another.
double peer_ns(double bytes, const DeviceProperties& on);

// What the operation's kernels take, besides what they multiply, by its row of the table.
double memory_ns(const Call& call, const KernelTime* row);
// A kernel of which only the bytes are known that it reads and writes.
double moving_ns(double bytes, const DeviceProperties& on);
// A copy on one device.
double copy_ns(const at::Tensor& to, const at::Tensor& from, const DeviceProperties& on);
// A contiguous copy on one device.
double contiguous_ns(const at::Tensor& from, const DeviceProperties& on);
// What the host needs for the operation, until its last kernel is queued.
double host_ns(const Call& call, const KernelTime* row);
// And for what is no operation, in a script of Python.
constexpr double kCopyHostNs = 20000;
constexpr double kDeviceCopyHostNs = 11000;
constexpr double kEventHostNs = 20000;
constexpr double kGraphHostNs = 15000;
constexpr double kRecordStreamHostNs = 12000;
constexpr double kSetStreamHostNs = 12000;
// What PyTorch's history of memory costs for each event, with its call stack.
constexpr double kHistoryHostNs = 10000;

}  // namespace plimsoll::simulated
