// Checks of data: those of kernels on the device, PyTorch's CUDA_KERNEL_ASSERT, and those that
// PyTorch makes on the host with a value that it reads back. Each file of this folder has one
// table.
//
// Known data decides a check. A failed check ends the program as on a GPU: at once with an error of
// the GPU, after which every CUDA call fails. If only made-up values are outside a limit, nothing
// is raised, and the report says that the check was not decided. CPU kernels decide nothing,
// because they refuse data that GPUs accept, and the other way round.
#pragma once

#include <string>

#include "operation/call.h"
#include "operation/named_rows.h"
#include "operation/written_out.h"

namespace plimsoll::simulated {

// Makes the checks of the call's kernel.
//
// Throws c10::AcceleratorError for a failed check on the device, and PyTorch's own error for a
// failed check on the host.
void check_data(const Call& call);

using Check = void (*)(const Call&);

// One row of a table. A new check is a new row. The name has no `_` at its end.
struct CheckRow {
  const char* name;
  Check check;
};

// Some rows of the table. The rules were read in PyTorch's kernels (aten/src/ATen/native/cuda) and
// tried on an H100 with PyTorch 2.11; tests/data/device_checks.csv has the results.
using CheckTable = NamedRows<CheckRow>;

// Adds the kernels through which Python makes checks.
void add_checks(WrittenOut& kernels);
// Adds the kernel of `embedding`, which checks its indices.
void add_embedding(WrittenOut& kernels);

// The least and the largest number that a kernel accepts.
struct Limits {
  double low = 0;
  double high = 0;
  std::optional<std::int64_t> except = std::nullopt;  // also accepted
};

// Returns a number that a check refuses, as text.
std::string number_text(double number);

// Finds a number of the tensor that is outside the limits, NaN too; `operation` is a name's number.
//
// Returns nothing if all numbers are within the limits, and if that is unknown; the report then
// says so.
std::optional<double> find_outside(std::uint32_t operation, const at::Tensor& tensor,
                                   const Limits& limits);

// Returns the tensor's numbers on the host if they equal those on a GPU; otherwise undefined.
at::Tensor known_values(const at::Tensor& tensor);

// Ends the program like a failed check on the device.
[[noreturn]] void fail_device(std::uint32_t operation, const std::string& why);

// Fails the device if a number of the tensor is outside the limits. `what` describes the number,
// such as "an index", and `of` the limits, such as "dimension 0, whose size is 3".
void require_within(std::uint32_t operation, const at::Tensor& tensor, const Limits& limits,
                    const char* what, const std::string& of);

}  // namespace plimsoll::simulated
