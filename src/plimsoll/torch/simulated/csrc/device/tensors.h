// Makes simulated tensors of two kinds. Tensors for PyTorch's Meta kernels have a shape but no
// memory. Tensors on a simulated device get their addresses from plimsoll's allocator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <unordered_map>

namespace plimsoll::simulated {

inline bool is_simulated(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// Returns the bytes of the storage that a tensor of this shape needs.
std::size_t storage_bytes(const at::Tensor& shape);
// Makes a tensor on the device with the shape of `shape`.
at::Tensor make_tensor(const at::Tensor& shape, c10::DeviceIndex device);
// Makes a copy of a tensor with the same shape and no memory. If two tensors share a storage, their
// copies share one too, provided that both copies are made with the same `storages`.
using MetaStorages = std::unordered_map<const c10::StorageImpl*, c10::Storage>;
at::Tensor meta_like(const at::Tensor& tensor, MetaStorages* storages = nullptr);

// Calls `visit` with every tensor within a value, including undefined ones.
template <typename Visit>
void for_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor()) visit(each.toTensor());
    }
  }
}

// Returns the value with every tensor in it replaced.
template <typename Replace>
c10::IValue map_tensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(replace(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace plimsoll::simulated
