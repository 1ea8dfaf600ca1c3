#include "checks/arguments.h"

#include <ATen/core/op_registration/adaption.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "checks/overlap.h"
#include "checks/types.h"
#include "device/memory.h"
#include "device/tensors.h"

namespace plimsoll::simulated {
namespace {

constexpr const char* kTwoDevices =
    "Expected all tensors to be on the same device, but found at least two devices, ";

// Returns whether a kernel takes a tensor whatever its device is. It takes numbers on the host, but
// does not write its results to one. `fill_` takes both tensors anywhere.
bool may_be_anywhere(const Call& call, std::size_t argument, const at::Tensor& tensor) {
  const OperationInfo& info = call.info();
  const bool is_result = info.is_written[argument] && info.plain_name != "fill_";
  return !tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0 && !is_result);
}

void check_devices(const Call& call) {
  // If the operation uses TensorIterator, TensorIterator raises the error (TORCH_CHECK).
  // Otherwise, PyTorch's generated wrapper raises the error.
  const bool by_iterator = call.info().is_pointwise || call.info().has(kByIterator);
  std::optional<c10::Device> common;
  const auto& schema_arguments = call.op().schema().arguments();
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    for_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (may_be_anywhere(call, i, tensor)) return;
      if (!common) {
        common = tensor.device();
      } else if (*common != tensor.device()) {
        const bool is_host_first = common->is_cpu();
        TORCH_CHECK(!by_iterator, kTwoDevices, is_host_first ? tensor.device() : *common, " and ",
                    is_host_first ? *common : tensor.device(), "!");
        const std::string method = "wrapper_CUDA_" + call.info().plain_name;
        c10::impl::common_device_check_failure(*common, tensor, method.c_str(),
                                               schema_arguments[i].name().c_str());
      }
    });
  }
}

void check_indices(const Call& call) {
  const at::Tensor self = call.tensor(0);
  for (const at::Tensor& index : call.tensors(1)) {
    TORCH_CHECK(!index.defined() || index.is_cpu() || index.device() == self.device(),
                "indices should be either on cpu or on the same device as the indexed tensor (",
                self.device(), ")");
  }
  const at::Tensor values = call.argument_count() > 2 ? call.tensor(2) : at::Tensor();
  TORCH_CHECK(!values.defined() || values.device() == self.device() || values.dim() == 0,
              kTwoDevices, self.device(), " and ", values.device(), "!");
}

}  // namespace

void check_arguments(Call& call) {
  const OperationInfo& info = call.info();
  if (!info.is_view()) {
    for (const at::Tensor& tensor : call.inputs()) check_access(tensor);
  }
  if (info.has(kTakesIndices)) check_indices(call);
  // PyTorch checks the devices for its own operations only. A library's operation may take
  // a tensor on the host besides tensors on a GPU.
  const bool is_of_pytorch = call.op().schema().name().starts_with("aten::");
  if (is_of_pytorch && !info.has(kMixesDevices)) check_devices(call);
  check_types(call);
  check_overlap(call);
}

}  // namespace plimsoll::simulated
