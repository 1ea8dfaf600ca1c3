// The checks that kernels make of their data on the device, PyTorch's CUDA_KERNEL_ASSERT, and those
// that PyTorch makes on the host of a value that it reads back: one table a file of this folder.
//
// A check is decided by data that is known. Then one that fails ends the program as a GPU does: at
// once with an error of the GPU, after which every call of CUDA fails. Where only values that were
// made up are outside a limit, nothing is raised, and the report says that the check was not
// decided. Kernels of the CPU decide nothing: they refuse what GPUs accept, and the other way
// round.
#pragma once

#include <span>
#include <string>

#include "operation/call.h"
#include "operation/written_out.h"

namespace plimsoll::simulated {

// Makes the checks of the call's kernel.
//
// Throws c10::AcceleratorError for a failed check of the device, and the error of PyTorch's own for
// one that the host makes.
void check_data(const Call& call);

using Check = void (*)(const Call&);

// A new check is a new row of one of the tables. The name is without `_` behind it.
struct CheckRow {
  const char* name;
  Check check;
};

// Each file's table. The rules were read in PyTorch's kernels (aten/src/ATen/native/cuda) and tried
// on an H100 with PyTorch 2.11; tests/data/device_checks.csv has what came out.
std::span<const CheckRow> index_checks();
std::span<const CheckRow> number_checks();
std::span<const CheckRow> solver_checks();

// Adds the kernels by which Python makes checks.
void add_checks(WrittenOut& kernels);
// Adds that of `embedding`, which checks its indices.
void add_embedding(WrittenOut& kernels);

// The least and the largest number that a kernel accepts.
struct Limits {
  double low = 0;
  double high = 0;
  std::optional<std::int64_t> except = std::nullopt;  // is accepted as well
};

// A number that a check refuses, as text.
std::string number_text(double number);

// Finds a number of the tensor that is outside the limits, NaN too; `operation`: a name's number.
//
// Returns none where all are within, and where that is not known, which the report then says.
std::optional<double> find_outside(std::uint32_t operation, const at::Tensor& tensor,
                                   const Limits& limits);

// The tensor's numbers on the host, where they are those that a GPU would have; undefined
// elsewhere.
at::Tensor known_values(const at::Tensor& tensor);

// Ends the program as a failed check of the device does.
[[noreturn]] void fail_device(std::uint32_t operation, const std::string& why);

// Fails the device where a number of the tensor is outside the limits. `what` it is: "an index";
// `of`: what the limits are of, "dimension 0, whose size is 3".
void require_within(std::uint32_t operation, const at::Tensor& tensor, const Limits& limits,
                    const char* what, const std::string& of);

}  // namespace plimsoll::simulated
