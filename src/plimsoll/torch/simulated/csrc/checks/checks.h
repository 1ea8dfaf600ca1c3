// Checks of the data that kernels work on. Kernels make some checks on the device (PyTorch's
// CUDA_KERNEL_ASSERT). PyTorch makes other checks on the host, with a value that it reads back.
// Each file of this folder has a table of checks.
//
// A check fails only if the data are certainly wrong. It then fails as on a GPU. A check on the
// host raises an ordinary PyTorch error. A check on the device raises an error after which every
// CUDA call fails. If only made-up values are outside a limit, nothing is raised, and the report
// says that the check is undecided. CPU kernels cannot be used to check: they refuse data that GPUs
// accept, and accept data that GPUs refuse.
#pragma once

#include <string>

#include "operation/call.h"
#include "operation/named_rows.h"
#include "operation/written_out.h"

namespace plimsoll::simulated {

// Does the checks of the call's kernel.
//
// Throws c10::AcceleratorError if a check on the device fails, and PyTorch's own error if a check
// on the host fails.
void check_data(const Call& call);

using Check = void (*)(const Call&);

// A row of a table of checks. `name` is the operation's name without a trailing underscore.
struct CheckRow {
  const char* name;
  Check check;
};

// Each object of this type adds its rows to the one table of all checks. The checks repeat those of
// PyTorch's kernels (aten/src/ATen/native/cuda). tests/data/device_checks.csv has the results of
// these kernels on an H100 with PyTorch 2.11.
using CheckTable = NamedRows<CheckRow>;

// Adds the operations that plimsoll's Python code calls for its checks.
void add_checks(WrittenOut& kernels);
// Adds a kernel for aten::embedding; the kernel checks the indices.
void add_embedding(WrittenOut& kernels);

// The smallest and the largest number that a kernel accepts.
struct Limits {
  double low = 0;
  double high = 0;
  std::optional<std::int64_t> except = std::nullopt;  // an accepted number outside these limits
};

// Returns a refused number as text, for an error message.
std::string number_text(double number);

// Returns an element that is NaN or outside the limits. If the elements are unknown, but some
// element is certainly outside the limits, returns a bound of the elements' range. `operation` is
// the number that Runtime::name returns for the operation's name.
//
// Returns nothing if all elements are within the limits. If unknown elements may be outside the
// limits, also returns nothing, and the report says that the check is undecided.
std::optional<double> find_outside(std::uint32_t operation, const at::Tensor& tensor,
                                   const Limits& limits);

// Returns the tensor's values if the tensor would have the same values on a GPU. Otherwise, returns
// an undefined tensor.
at::Tensor known_values(const at::Tensor& tensor);

// Throws c10::AcceleratorError, as for a failed check on the device. Every later CUDA call fails
// too.
[[noreturn]] void fail_device(std::uint32_t operation, const std::string& why);

// Calls fail_device if find_outside returns a number. The error text contains `what`,
// such as "an index", and `of`, such as "dimension 0, whose size is 3".
void require_within(std::uint32_t operation, const at::Tensor& tensor, const Limits& limits,
                    const char* what, const std::string& of);

}  // namespace plimsoll::simulated
