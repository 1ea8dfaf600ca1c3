// Copies between the host and devices: what they take on the way, who waits for them, and whether
// values are known.
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>

#include "memory.h"
#include "runtime.h"
#include "values.h"
#include "virtual.h"
#include "written_out.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

void copy_values(const Tensor& to, const Tensor& from) {
  if (to.is_cuda()) {
    Allocation* const allocation = allocation_of(to);
    if (allocation == nullptr) return;
    const Tensor values = values_of(to);
    const Allocation* const source = from.is_cuda() ? allocation_of(from) : nullptr;
    if (!values.defined()) return;
    const Tensor known = from.is_cuda() ? values_of(from) : is_virtual(from) ? Tensor() : from;
    const bool is_whole = static_cast<std::size_t>(to.numel()) * to.itemsize() == allocation->size;
    if (known.defined()) {
      values.copy_(known);
      const bool is_placeholder = source != nullptr && source->is_placeholder;
      allocation->is_placeholder = is_placeholder || (allocation->is_placeholder && !is_whole);
    } else {
      fill_unknown(values);
      allocation->is_placeholder = true;
    }
    return;
  }
  const Tensor known = values_of(from);
  if (known.defined()) {
    const Allocation* const source = allocation_of(from);
    if (source != nullptr && source->is_placeholder) {
      runtime().assume(current_operation().name, kReadsPlaceholders);
    }
    to.copy_(known);
  } else {
    if (!is_virtual(to)) fill_unknown(to);
    runtime().assume(current_operation().name, kReadsPlaceholders);
  }
}

// What comes from the host, or is drawn at random, is the program's input until it is called more.
void note_input(const Tensor& tensor) {
  const Allocation* const allocation = allocation_of(tensor);
  if (allocation != nullptr)
    runtime().note_role(allocation->device, allocation->serial, Role::input);
}

void move(const Tensor& to, const Tensor& from, bool non_blocking) {
  Runtime& state = runtime();
  const c10::DeviceIndex index = to.is_cuda() ? to.device().index() : from.device().index();
  const Device& on = state.device(index);
  const auto stream = static_cast<std::uint64_t>(state.current_stream(index));
  const double bytes = static_cast<double>(to.numel()) * static_cast<double>(to.itemsize());
  const bool crosses = !to.is_cuda() || !from.is_cuda();
  state.api->advance(on.engine, state.host_ns_per_operation);
  state.api->launch(
      on.engine, stream,
      crosses ? bytes / on.properties.copy_bytes_per_ns : 2 * bytes / on.properties.bytes_per_ns);
  const void* const host =
      crosses ? (to.is_cuda() ? from.const_data_ptr() : to.const_data_ptr()) : nullptr;
  const bool is_pinned_copy = crosses && is_pinned(host);
  if (!from.is_cuda()) note_input(to);
  if (is_pinned_copy && non_blocking) {
    note_pinned_use(host, index, state.current_stream(index));
  } else if (crosses && !(non_blocking && to.is_cuda())) {
    state.synchronize(index);
  }
  copy_values(to, from);
}

// The order of temporaries is that of PyTorch's copy kernel (aten/src/ATen/native/cuda/Copy.cu).
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  const std::uint32_t name = runtime().name("aten::copy_");
  const bool from_host = !source.is_cuda();
  const OperationScope scope(name, from_host ? Role::input : current_operation().role);
  const DeviceScope device(self.is_cuda() ? self.device().index() : source.device().index());
  const Tensor expanded = source.expand_as(self);
  if (self.is_cuda() && source.is_cuda() && self.device() == source.device()) {
    move(self, expanded, non_blocking);
    return self;
  }
  const bool same_type = self.scalar_type() == source.scalar_type();
  const auto iterator = at::TensorIteratorConfig()
                            .add_output(self)
                            .add_const_input(expanded)
                            .resize_outputs(false)
                            .check_all_same_dtype(false)
                            .check_all_same_device(false)
                            .build();
  if (same_type && iterator.is_contiguous()) {
    move(self, expanded, non_blocking);
    return self;
  }
  const OperationScope temporaries(name, Role::temporary);
  Tensor to;
  Tensor from;
  if (self.is_cuda() || non_blocking) {
    to = self.is_contiguous() ? self : at::empty_like(self, at::MemoryFormat::Contiguous);
    from = source.to(self.scalar_type()).expand_as(self).contiguous();
  } else {
    to = self.is_contiguous() && same_type
             ? self
             : at::empty_like(self, self.options().dtype(source.scalar_type()),
                              at::MemoryFormat::Contiguous);
    from = source.expand_as(self).contiguous();
  }
  to.copy_(from, non_blocking);
  if (!to.is_same(self)) self.copy_(to, non_blocking);
  return self;
}

}  // namespace

void add_copy_kernels(WrittenOut& kernels) { kernels.add("copy_", TORCH_FN(copy_)); }

}  // namespace plimsoll::simulated
