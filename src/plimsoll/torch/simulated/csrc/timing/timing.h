// Estimates the times of an operation: how long its kernels run on the GPU, and how long the host
// takes to queue them.
//
// Kernel times were measured on an H200, one operation at a time (benchmarks/kernels.py). For other
// GPUs they are scaled by three rates: memory bandwidth, multiplications, and everything else. Host
// times were measured on several hosts (benchmarks/host.py, steps.py). Times are in ns. They do
// not depend on the values of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/runtime.h"
#include "operation/call.h"
#include "operation/multiplication.h"

namespace plimsoll::simulated {

// Figures of the H200 on which the times were measured: its rates without and with tensor cores,
// and the part of its cache that can hold a kernel's operands.
constexpr double kH200FlopsPerNs = 66.9e3;
constexpr double kH200TensorFlopsPerNs = 989e3;
constexpr double kCacheBytes = 40e6;

double multiplied_ns(const Product& product, const DeviceProperties& on);
double multiplied_ns(const ConvolutionWork& work, const DeviceProperties& on);
double multiplied_ns(const AttentionWork& work, const DeviceProperties& on);
double multiplied_ns(const RecurrentWork& work, const DeviceProperties& on);

// The tile of a kernel that torch.compile makes from a matrix product template. A thread block of
// the kernel computes `rows` x `columns` results. It reads the operands in portions, each with
// `terms` terms of every sum.
struct TemplateTile {
  double rows, columns, terms;
  double buffers;  // buffers for operands that are loaded ahead of their use
  double warps;
  bool is_along_terms;  // in both operands, the terms of a sum are adjacent in memory
};
double template_ns(const Product& product, const TemplateTile& tile, const DeviceProperties& on);

// Returns the GPU's time for a copy between host and device.
double transfer_ns(double bytes, bool is_pinned, bool to_device, const DeviceProperties& on);

// Returns the time of a copy from one device to another.
double peer_ns(double bytes, const DeviceProperties& on);

// How the bytes of a collective travel between the ranks of its group.
enum class Traffic : std::uint8_t {
  reduced,    // twice around a ring, or up and down a tree: all_reduce
  collected,  // once around a ring: all_gather and reduce_scatter
  passed_on,  // along a chain: broadcast and reduce
  exchanged,  // from each rank to each other: all_to_all
  sent,       // from one rank to another
};

// The ranks among which bytes travel, and the number of machines on which these ranks run.
struct GroupShape {
  std::int64_t ranks = 1, machines = 1;
};

// Returns the GPU's time for a collective. `bytes` is the size of the rank's larger side, its
// inputs or its outputs.
double collective_ns(Traffic traffic, double bytes, GroupShape group, const DeviceProperties& on);

// A row of data/kernel_times.csv. The top of that file explains the columns.
struct KernelTime {
  const char* name;
  std::int64_t start_ns, row_ps, moved_permille, element_fs, touches, host_ns, plan_us;
};

// Returns the table's row for this operation and its operands; null if there is none.
const KernelTime* kernel_time(const Call& call);

// Returns the time of the operation's kernels. If the call noted multiplications, the time follows
// from them; otherwise it follows from the table's row.
double kernel_ns(const Call& call, const KernelTime* row);
// Returns the time of a kernel from the number of bytes that it reads and writes.
double moving_ns(double bytes, const DeviceProperties& on);
// Returns the time of a copy on one device.
double copy_ns(const at::Tensor& to, const at::Tensor& from, const DeviceProperties& on);
// Returns the host's time for the operation, until the operation's last kernel is queued.
double host_ns(const Call& call, const KernelTime* row);

}  // namespace plimsoll::simulated
