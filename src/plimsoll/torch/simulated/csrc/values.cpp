#include "values.h"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <memory>

#include "memory.h"

namespace plimsoll::simulated {
namespace {

// The largest that have values; integers decide shapes and control flow.
constexpr std::size_t kMostFloatBytes = 4096;
constexpr std::size_t kMostIntegerBytes = std::size_t{1} << 20;

}  // namespace

bool may_have_values(const Allocation& allocation, at::ScalarType type) {
  return allocation.size <=
         (c10::isIntegralType(type, /*includeBool=*/true) ? kMostIntegerBytes : kMostFloatBytes);
}

bool has_values(const at::Tensor& tensor) {
  const Allocation* const allocation = allocation_of(tensor);
  return allocation != nullptr && allocation->values != nullptr;
}

void fill_unknown(const at::Tensor& tensor) {
  const bool is_integer = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  tensor.fill_(is_integer ? 0 : 1);
}

at::Tensor values_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return at::from_blob(nullptr, tensor.sizes(), tensor.strides(),
                         at::TensorOptions().dtype(tensor.dtype()));
  }
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || !may_have_values(*allocation, tensor.scalar_type())) return {};
  if (!allocation->values) {
    allocation->values = std::make_unique<std::byte[]>(allocation->size);
    const auto count = static_cast<std::int64_t>(allocation->size / tensor.itemsize());
    fill_unknown(at::from_blob(allocation->values.get(), {count},
                               at::TensorOptions().dtype(tensor.dtype())));
  }
  std::byte* const first = allocation->values.get() +
                           static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  at::Tensor values = at::from_blob(first, tensor.sizes(), tensor.strides(),
                                    at::TensorOptions().dtype(tensor.dtype()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    values.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return values;
}

}  // namespace plimsoll::simulated
