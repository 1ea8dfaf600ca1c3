#include "execute/by_element.h"

#include <ATen/core/List.h>
#include <ATen/native/ForeachUtils.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::simulated {
namespace {

// Operations with kernels that take integers. The kernels of all other operations on lists compute
// floating-point numbers, so PyTorch computes integers element by element.
constexpr std::string_view kTakeIntegers[] = {"add", "sub", "mul",  "abs",
                                              "neg", "max", "zero", "clone"};

// The lists and numbers among the arguments of an operation on lists.
struct Lists {
  std::vector<std::vector<at::Tensor>> tensors;
  std::vector<at::Scalar> scalars;
  bool has_scalar_list = false;
};

std::span<const c10::IValue> arguments_of(const c10::OperatorHandle& op,
                                          const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  return {stack.data() + stack.size() - count, count};
}

Lists lists_of(std::span<const c10::IValue> arguments) {
  Lists lists;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensorList()) {
      lists.tensors.push_back(argument.toTensorVector());
    } else if (argument.isScalar()) {
      lists.scalars.push_back(argument.toScalar());
    } else if (argument.isList()) {
      lists.has_scalar_list = true;
      for (const c10::IValue& each : argument.toListRef()) lists.scalars.push_back(each.toScalar());
    }
  }
  return lists;
}

bool have_one_length(const Lists& lists) {
  const std::size_t length = lists.tensors[0].size();
  return length != 0 && (!lists.has_scalar_list || lists.scalars.size() == length) &&
         std::ranges::all_of(lists.tensors,
                             [&](const auto& list) { return list.size() == length; });
}

// Returns whether a kernel computes norms of this order, which is the first number. Powers are
// summed by a kernel only for the orders 1 and 2.
bool has_norm_kernel(const Lists& lists, std::string_view name) {
  const double order = lists.scalars.empty() ? 2 : lists.scalars[0].toDouble();
  const bool is_largest = order == std::numeric_limits<double>::infinity();
  return lists.tensors[0][0].is_floating_point() &&
         (order == 1 || order == 2 || (is_largest && name == "norm"));
}

// Returns whether the tensors are alike enough for the kernel of `_foreach_copy_`, which converts
// types.
bool are_copied_at_once(const Lists& lists) {
  const std::vector<at::TensorList> both(lists.tensors.begin(), lists.tensors.end());
  const at::TensorList sources = both[1];
  return at::native::_check_tensors_share_device_and_dtype(both, /*skip_dtype_check=*/true) &&
         at::native::_check_tensors_share_sizes_and_strides(both) &&
         std::ranges::all_of(sources, [&](const at::Tensor& source) {
           return source.scalar_type() == sources[0].scalar_type();
         });
}

bool are_computed_at_once(const Lists& lists, std::string_view name) {
  const std::vector<at::TensorList> all(lists.tensors.begin(), lists.tensors.end());
  const bool takes_integers = std::ranges::find(kTakeIntegers, name) != std::end(kTakeIntegers);
  const bool is_norm = name == "norm" || name == "powsum";
  if (name == "abs" && all[0][0].is_complex()) return false;
  if (is_norm && !has_norm_kernel(lists, name)) return false;
  return at::native::can_use_fast_route(all, is_norm ? at::ArrayRef<at::Scalar>() : lists.scalars,
                                        !takes_integers);
}

// Returns the name without `_foreach_` and without the `_` of an operation in place.
std::string_view name_of_element(const OperationInfo& info) {
  std::string_view name = info.plain_name;
  name.remove_prefix(std::string_view("_foreach_").size());
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// Refuses the second operand of `_foreach_add.Tensor` and its like as their kernels do, which read
// it on the device.
void check_operand(const OperationInfo& info, const at::Tensor& first, const at::Tensor& operand) {
  const bool in_place = info.is_written[0];
  TORCH_CHECK(operand.dim() == 0, "scalar tensor expected to be 0 dim but ",
              in_place ? "has " : "it has ", operand.dim(), " dimensions and ", operand.numel(),
              " elements.");
  TORCH_CHECK(first.device() == operand.device(), "scalar tensor ", in_place ? "is " : "",
              "expected to be on ", first.device(), " but is on ", operand.device());
}

bool has_kernel(const OperationInfo& info, const Lists& lists, const c10::IValue& second) {
  const std::string_view name = name_of_element(info);
  if (!have_one_length(lists)) return false;
  if (name == "copy") return are_copied_at_once(lists);
  if (!are_computed_at_once(lists, name)) return false;
  if (!second.isTensor()) return true;
  const at::Tensor& first = lists.tensors[0][0];
  if (first.scalar_type() != second.toTensor().scalar_type()) return false;
  check_operand(info, first, second.toTensor());
  return true;
}

// Replaces a tensor of numbers on the host by the numbers, and calls the overload for numbers, as
// the kernels of _foreach_mul.Tensor, _foreach_div.Tensor, _foreach_addcmul.Tensor and
// _foreach_addcdiv.Tensor do.
bool run_with_numbers(const c10::OperatorHandle& op, const OperationInfo& info,
                      torch::jit::Stack* stack) {
  const std::string_view name = name_of_element(info);
  if (op.schema().overload_name() != "Tensor" || name == "add") return false;
  const bool is_list = name.starts_with("addc");
  const at::Tensor numbers = stack->back().toTensor();
  if (!is_list && !numbers.is_cpu()) return false;
  const std::size_t length = arguments_of(op, *stack)[0].toTensorVector().size();
  if (is_list) {
    stack->back() = c10::List<at::Scalar>(
        at::native::convert_tensor_to_scalar_list(numbers, static_cast<std::int64_t>(length)));
  } else {
    stack->back() = numbers.item();
  }
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(op.schema().name().c_str(), is_list ? "ScalarList" : "Scalar")
      .callBoxed(stack);
  return true;
}

}  // namespace

bool run_by_element(const c10::OperatorHandle& op, const OperationInfo& info,
                    torch::jit::Stack* stack) {
  if (run_with_numbers(op, info, stack)) return true;
  const std::span<const c10::IValue> arguments = arguments_of(op, *stack);
  const Lists lists = lists_of(arguments);
  const c10::IValue second = arguments.size() > 1 ? arguments[1] : c10::IValue();
  if (lists.tensors.empty() || has_kernel(info, lists, second)) return false;
  // The CPU's kernel of an operation on lists calls another operation for each element.
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  return true;
}

}  // namespace plimsoll::simulated
