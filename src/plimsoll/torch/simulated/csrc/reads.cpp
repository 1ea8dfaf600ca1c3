// What the host reads of a device: values, and sizes that depend on them.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>

#include "memory.h"
#include "runtime.h"
#include "values.h"
#include "written_out.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

c10::Scalar local_scalar_dense(const Tensor& self) {
  runtime().synchronize(self.device().index());
  const Tensor values = values_of(self);
  const Allocation* const allocation = allocation_of(self);
  if (allocation == nullptr || allocation->is_placeholder) {
    runtime().assume(runtime().name("aten::_local_scalar_dense"), kReadsPlaceholders);
  }
  if (values.defined()) return at::_local_scalar_dense(values);
  Tensor unknown = at::empty({}, at::TensorOptions().dtype(self.scalar_type()));
  fill_unknown(unknown);
  return at::_local_scalar_dense(unknown);
}

bool equal(const Tensor& self, const Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  runtime().synchronize(self.device().index());
  const Tensor first = values_of(self);
  const Tensor second = values_of(other);
  if (first.defined() && second.defined()) return at::equal(first, second);
  runtime().assume(runtime().name("aten::equal"), "tensors of equal shape are taken for equal");
  return true;
}

// cub's scratch for counting: a partial sum for each of 40 blocks on every multiprocessor.
std::size_t count_scratch(std::int64_t numel, int multiprocessors) {
  if (numel <= 4096) return 1;
  return (static_cast<std::size_t>(multiprocessors) * 40 * 4 + 255) / 256 * 256 + 255;
}

// cub's scratch for selecting: the state of each tile, aligned twice.
std::size_t select_scratch(std::int64_t numel) {
  const std::size_t tiles = (static_cast<std::size_t>(numel) + 4223) / 4224 + 32;
  return (tiles * 8 + 255) / 256 * 256 + 256 + 255;
}

// nonzero: exact where values are known, else every element counts.
Tensor nonzero(const Tensor& self) {
  const OperationScope scope(runtime().name("aten::nonzero"), Role::output);
  const c10::DeviceIndex index = self.device().index();
  runtime().synchronize(index);
  const DeviceScope device(index);
  const Allocation* const allocation = allocation_of(self);
  const Tensor values = has_values(self) || self.numel() == 0 ? values_of(self) : Tensor();
  Tensor places;
  std::int64_t found = self.numel();
  if (values.defined()) {
    places = at::nonzero(values);
    found = places.size(0);
    if (allocation != nullptr && allocation->is_placeholder) {
      runtime().assume(runtime().name("aten::nonzero"),
                       "how many elements are not zero was taken from placeholders");
    }
  } else {
    runtime().assume(runtime().name("aten::nonzero"), "all elements are taken for not zero");
  }
  // Counts, then writes all positions of one dimension after those of another.
  const auto temporary = [](std::size_t bytes) {
    const OperationScope temporaries(runtime().name("aten::nonzero"), Role::temporary);
    return take_memory(bytes);
  };
  const bool is_empty = self.numel() == 0;
  const int multiprocessors = runtime().device(index).properties.multiprocessors;
  at::DataPtr count = is_empty ? at::DataPtr() : temporary(sizeof(int));
  if (!is_empty) temporary(count_scratch(self.numel(), multiprocessors));
  const std::int64_t sizes[] = {found, self.dim()};
  const std::int64_t strides[] = {1, std::max<std::int64_t>(found, 1)};
  const Tensor result = at::detail::empty_generic(
      sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kLong, {});
  result.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(sizes),
                                                      at::IntArrayRef(strides));
  if (found != 0 && self.dim() != 0) temporary(select_scratch(self.numel()));
  if (places.defined()) {
    if (Tensor known = values_of(result); known.defined()) {
      known.copy_(places);
      if (Allocation* const made = allocation_of(result)) {
        made->is_placeholder = allocation != nullptr && allocation->is_placeholder;
      }
    }
  }
  return result;
}

}  // namespace

void add_reading_kernels(WrittenOut& kernels) {
  kernels.add("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  kernels.add("equal", TORCH_FN(equal));
  kernels.add("nonzero", TORCH_FN(nonzero));
}

}  // namespace plimsoll::simulated
