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

void check_devices(const Call& call) {
  std::optional<c10::Device> common;
  const auto& schema_arguments = call.op().schema().arguments();
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    for_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return;
      if (!common) {
        common = tensor.device();
      } else if (*common != tensor.device()) {
        // If the operation uses TensorIterator, TensorIterator raises the error (TORCH_CHECK).
        // Otherwise, PyTorch's generated wrapper raises the error.
        TORCH_CHECK(!call.info().is_pointwise && !call.info().has(kByIterator), kTwoDevices,
                    *common, " and ", tensor.device(), "!");
        const std::string method = "wrapper_CUDA_" + call.info().plain_name;
        c10::impl::common_device_check_failure(*common, tensor, method.c_str(),
                                               schema_arguments[i].name().c_str());
      }
    });
  }
}

// Checks the devices of an operation on lists, which computes with the first elements of all lists,
// then with the second ones, and so on. A number on the host goes with tensors on any device,
// unless the operation writes to it.
void check_devices_by_element(const Call& call) {
  if (call.info().plain_name.starts_with("_foreach_copy")) return;
  const std::size_t count = call.tensors(0).size();
  std::vector<std::optional<c10::Device>> common(count);
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (!call.argument(i).isTensorList()) continue;
    const std::vector<at::Tensor> list = call.tensors(i);
    for (std::size_t place = 0; place < std::min(count, list.size()); ++place) {
      const at::Tensor& tensor = list[place];
      if (tensor.is_cpu() && tensor.dim() == 0 && !call.info().is_written[i]) continue;
      if (!common[place]) common[place] = tensor.device();
      TORCH_CHECK(*common[place] == tensor.device(), kTwoDevices, *common[place], " and ",
                  tensor.device(), "!");
    }
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
  if (!info.has(kMixesDevices)) check_devices(call);
  if (info.has(kOnLists)) check_devices_by_element(call);
  check_types(call);
  check_overlap(call);
}

}  // namespace plimsoll::simulated
