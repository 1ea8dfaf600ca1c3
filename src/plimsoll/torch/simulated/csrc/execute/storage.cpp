// Makes device tensors without contents, resizes and exchanges their storages, and records the use
// of storages on other streams.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "device/host_times.h"
#include "device/memory.h"
#include "device/runtime.h"
#include "execute/kernels.h"
#include "timing/timing.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

c10::DeviceIndex index_of(const std::optional<c10::Device>& device) {
  return device && device->has_index() ? device->index() : runtime().current_device();
}

void refuse_layout(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == c10::Layout::Strided, "expected a strided layout");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor empty_memory_format(at::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory,
                           std::optional<c10::MemoryFormat> format) {
  refuse_layout(layout, pin_memory);
  const DeviceScope scope(index_of(device));
  return at::detail::empty_generic(size, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  refuse_layout(layout, pin_memory);
  const DeviceScope scope(index_of(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

// Returns the allocator of tensors that are known to be zero. It gives no memory.
c10::Allocator* allocator_of_zeros(c10::DeviceIndex device) {
  static std::mutex lock;
  static auto* const made = new std::map<c10::DeviceIndex, at::native::ZeroTensorAllocator>;
  const std::lock_guard guard(lock);
  return &made->try_emplace(device, at::Device(c10::DeviceType::CUDA, device)).first->second;
}

// Makes a tensor that is known to be zero, for example a tangent that forward-mode differentiation
// does not have. PyTorch computes with such a tensor without memory for its elements.
Tensor zero_tensor(at::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                   std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pin_memory) {
  refuse_layout(layout, pin_memory);
  return at::detail::empty_generic(
      size, allocator_of_zeros(index_of(device)),
      c10::DispatchKeySet({c10::DispatchKey::CUDA, c10::DispatchKey::ZeroTensor}),
      c10::dtype_or_default(dtype), std::nullopt);
}

void resize_storage(c10::StorageImpl& storage, std::size_t bytes, c10::DeviceIndex device) {
  const DeviceScope scope(device);
  c10::DataPtr memory = device_allocator()->allocate(bytes);
  const Allocation* const before = held_by(storage);
  if (bytes != 0 && before != nullptr) {
    keep_contents(*before, *static_cast<Allocation*>(memory.get_context()));
  }
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size,
                      std::optional<c10::MemoryFormat> format) {
  if (self.sizes() == size && !format) return self;
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format && *format != c10::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const std::size_t needed =
      self.numel() == 0
          ? 0
          : static_cast<std::size_t>(self.storage_offset() + self.numel()) * self.itemsize();
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (needed > storage.nbytes()) resize_storage(storage, needed, self.device().index());
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage source, std::int64_t offset, at::IntArrayRef size,
                    at::IntArrayRef stride) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr || stride.size() != size.size()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  const std::size_t needed = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), static_cast<std::size_t>(offset));
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (self.numel() != 0 && needed > storage.nbytes()) {
    resize_storage(storage, needed, self.device().index());
  }
  return self;
}

Tensor& set_source_storage(Tensor& self, c10::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

Tensor& set_nothing(Tensor& self) {
  return set_storage(
      self, c10::Storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true), 0, {0}, {});
}

// plimsoll::resize_storage: implements torch.UntypedStorage.resize_.
void resize_storage_of(const Tensor& self, std::int64_t bytes) {
  resize_storage(*self.storage().unsafeGetStorageImpl(), static_cast<std::size_t>(bytes),
                 self.device().index());
}

void record_stream(Tensor& self, c10::Stream stream) {
  if (!self.has_storage()) return;
  check_access(self);
  // PyTorch's allocator ignores record_stream if the storage did not get its memory from the
  // allocator.
  const Allocation* const allocation = held_by(*self.storage().unsafeGetStorageImpl());
  if (allocation == nullptr) return;
  Runtime& state = runtime();
  state.pass_host_time(allocation->device, kRecordStreamHostNs);
  state.engines->record_stream(state.device(allocation->device).engine, allocation->address,
                               static_cast<std::uint64_t>(stream.id()));
}

// plimsoll::map_host: returns a tensor on the current device that uses the memory of `host`, which
// is page-locked.
Tensor map_host_tensor(const Tensor& host) {
  TORCH_CHECK(host.device().is_cpu() && host.is_non_overlapping_and_dense(),
              "only a dense tensor of the host can be mapped");
  Runtime& state = runtime();
  const c10::DeviceIndex device = state.current_device();
  state.use(device);
  return map_host(host, device);
}

// plimsoll::unowned: makes a tensor that uses the memory of `tensor`, but does not keep this memory
// alive.
Tensor unowned(const Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  at::DataPtr pointer(storage._mutable_data_ptr_no_checks().get(), tensor.device());
  c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer));
  return at::detail::make_tensor<c10::TensorImpl>(
             std::move(made), c10::DispatchKeySet(c10::DispatchKey::CUDA), tensor.dtype())
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

// plimsoll::refuse_access: makes every later use of the tensor raise an error with the text `why`.
void refuse_access(const at::Tensor& tensor, c10::string_view why) {
  tensor.unsafeGetTensorImpl()->release_storage_and_set_meta_custom_data_ptr_error_msg_(
      std::string(why));
}

}  // namespace

void add_storage_kernels(WrittenOut& kernels) {
  kernels.add("empty.memory_format", TORCH_FN(empty_memory_format));
  kernels.add("empty_strided", TORCH_FN(empty_strided));
  kernels.add("_efficientzerotensor", TORCH_FN(zero_tensor));
  kernels.add("resize_", TORCH_FN(resize_));
  kernels.add("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  kernels.add("set_.source_Storage", TORCH_FN(set_source_storage));
  kernels.add("set_.source_Tensor", TORCH_FN(set_tensor));
  kernels.add("set_", TORCH_FN(set_nothing));
  kernels.add("record_stream", TORCH_FN(record_stream));
  define("resize_storage(Tensor tensor, int bytes) -> ()", TORCH_FN(resize_storage_of));
  define("map_host(Tensor host) -> Tensor", TORCH_FN(map_host_tensor));
  define("unowned(Tensor tensor) -> Tensor", TORCH_FN(unowned));
  define("refuse_access(Tensor tensor, str why) -> ()", TORCH_FN(refuse_access));
}

}  // namespace plimsoll::simulated
