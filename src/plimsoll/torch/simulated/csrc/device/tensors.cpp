#include "device/tensors.h"

#include <utility>

#include "device/memory.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

c10::Storage meta_storage(std::size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t{}, bytes,
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
      c10::GetAllocator(c10::DeviceType::Meta), true));
}

}  // namespace

std::size_t storage_bytes(const at::Tensor& shape) {
  return shape.has_storage() ? shape.storage().nbytes() : 0;
}

at::Tensor meta_like(const at::Tensor& tensor, MetaStorages* storages) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;  // a Python number
  const bool has_storage = tensor.has_storage();
  c10::Storage storage;
  if (storages != nullptr && has_storage) {
    c10::Storage& shared = (*storages)[tensor.storage().unsafeGetStorageImpl()];
    if (!shared) shared = meta_storage(tensor.storage().nbytes());
    storage = shared;
  } else {
    storage =
        meta_storage(has_storage ? tensor.storage().nbytes()
                                 : static_cast<std::size_t>(tensor.numel()) * tensor.itemsize());
  }
  at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  c10::TensorImpl* const impl = meta.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) meta._set_conj(true);
  if (tensor.is_neg()) meta._set_neg(true);
  return meta;
}

at::Tensor make_tensor(const at::Tensor& shape, c10::DeviceIndex device) {
  const std::size_t bytes = storage_bytes(shape);
  const DeviceScope scope(device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{}, bytes,
                                                       device_allocator()->allocate(bytes),
                                                       device_allocator(), true);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CUDA), shape.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(),
                                                    shape.storage_offset());
  return made;
}

}  // namespace plimsoll::simulated
