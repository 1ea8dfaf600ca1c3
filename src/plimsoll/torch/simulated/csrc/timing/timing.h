// How long operations take: on the GPU, by kind of kernel, and on the host that calls them.
//
// Numbers of kernels were measured on an H200, one operation at a time (benchmarks/kernels.py), and
// are carried to other GPUs by their rates: of memory, of multiplications, of everything else.
// The host's were measured on several hosts (benchmarks/host.py, steps.py). Times are in ns, work
// in bytes and numbers; nothing here depends on the values of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/runtime.h"
#include "operation/call.h"
#include "operation/multiplication.h"

namespace plimsoll::simulated {

// The H200 on which this was measured: outside its tensor cores, on them, and what of its cache
// serves a kernel's operands.
constexpr double kH200FlopsPerNs = 66.9e3;
constexpr double kH200TensorFlopsPerNs = 989e3;
constexpr double kCacheBytes = 40e6;

double multiplied_ns(const Product& product, const DeviceProperties& on);
double multiplied_ns(const ConvolutionWork& work, const DeviceProperties& on);
double multiplied_ns(const AttentionWork& work, const DeviceProperties& on);
double multiplied_ns(const RecurrentWork& work, const DeviceProperties& on);

// The block of a result that a template of PyTorch's compiler works out at a time, terms by terms.
struct TemplateTile {
  double rows, columns, terms;
  double buffers;  // that operands are loaded into ahead
  double warps;
  bool is_along_terms;  // the numbers of both operands that are summed up are neighbours
};
double template_ns(const Product& product, const TemplateTile& tile, const DeviceProperties& on);

// A copy between host and device, on the GPU.
double transfer_ns(double bytes, bool is_pinned, bool to_device, const DeviceProperties& on);

// A copy from one device to another.
double peer_ns(double bytes, const DeviceProperties& on);

// A row of data/kernel_times.csv, which says what the columns are.
struct KernelTime {
  const char* name;
  std::int64_t start_ns, row_ps, moved_permille, element_fs, touches, host_ns, plan_us;
};

// The row of an operation with such operands; null where there is none.
const KernelTime* kernel_time(const Call& call);

// The time of the operation's kernels, by what they multiply, or else by its row of the table.
double kernel_ns(const Call& call, const KernelTime* row);
// A kernel of which only the bytes are known that it reads and writes.
double moving_ns(double bytes, const DeviceProperties& on);
// A copy on one device.
double copy_ns(const at::Tensor& to, const at::Tensor& from, const DeviceProperties& on);
// The host's time for the operation, until its last kernel is queued.
double host_ns(const Call& call, const KernelTime* row);

}  // namespace plimsoll::simulated
