// The time of operations: on the GPU, by kind of kernel, and on the host that calls them.
//
// Kernel times were measured on an H200, one operation at a time (benchmarks/kernels.py). Rates
// carry them over to other GPUs: of memory, of multiplications, of everything else. Host times were
// measured on several hosts (benchmarks/host.py, steps.py). Times are in ns; work is in bytes and
// counts of numbers. Times do not depend on the values of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/runtime.h"
#include "operation/call.h"
#include "operation/multiplication.h"

namespace plimsoll::simulated {

// Rates of the H200 that was measured: outside its tensor cores, on them, and the part of its cache
// that serves a kernel's operands.
constexpr double kH200FlopsPerNs = 66.9e3;
constexpr double kH200TensorFlopsPerNs = 989e3;
constexpr double kCacheBytes = 40e6;

double multiplied_ns(const Product& product, const DeviceProperties& on);
double multiplied_ns(const ConvolutionWork& work, const DeviceProperties& on);
double multiplied_ns(const AttentionWork& work, const DeviceProperties& on);
double multiplied_ns(const RecurrentWork& work, const DeviceProperties& on);

// The block of a result that a template of PyTorch's compiler computes at a time, terms by terms.
struct TemplateTile {
  double rows, columns, terms;
  double buffers;  // buffers that operands are loaded into ahead
  double warps;
  bool is_along_terms;  // the numbers of both operands that are summed up are adjacent in memory
};
double template_ns(const Product& product, const TemplateTile& tile, const DeviceProperties& on);

// Returns the GPU time of a copy between host and device.
double transfer_ns(double bytes, bool is_pinned, bool to_device, const DeviceProperties& on);

// Returns the time of a copy from one device to another.
double peer_ns(double bytes, const DeviceProperties& on);

// A row of data/kernel_times.csv, which explains its columns.
struct KernelTime {
  const char* name;
  std::int64_t start_ns, row_ps, moved_permille, element_fs, touches, host_ns, plan_us;
};

// Returns the row of an operation with such operands; null if there is none.
const KernelTime* kernel_time(const Call& call);

// Returns the time of the operation's kernels, by their multiplications, or else by the table's
// row.
double kernel_ns(const Call& call, const KernelTime* row);
// Returns the time of a kernel of which only the bytes read and written are known.
double moving_ns(double bytes, const DeviceProperties& on);
// Returns the time of a copy on one device.
double copy_ns(const at::Tensor& to, const at::Tensor& from, const DeviceProperties& on);
// Returns the host's time for the operation, until its last kernel is queued.
double host_ns(const Call& call, const KernelTime* row);

}  // namespace plimsoll::simulated
