// Simulates copies to and from devices: the temporary memory that a copy takes, whether the host
// waits for it, and which of the copied values plimsoll then knows.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

#include <cstdint>

#include "device/host_times.h"
#include "device/memory.h"
#include "device/pinned.h"
#include "device/runtime.h"
#include "device/virtual.h"
#include "execute/kernels.h"
#include "timing/timing.h"
#include "values/budget.h"
#include "values/conversion.h"
#include "values/known.h"
#include "values/reading.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Describes the values of a host tensor when plimsoll does not copy them. For integers, the
// description has the lowest and the highest value. If many elements equal one of these two values,
// as is common for padding and masks, the description also has the share of those elements.
Description described(const Tensor& from) {
  const at::ScalarType type = from.scalar_type();
  const bool is_read =
      !is_virtual(from) && from.numel() != 0 && c10::isIntegralType(type, /*includeBool=*/true);
  if (!is_read) return Description::of_type(type);
  const WithContentsScope real;
  const auto share = [&](const Tensor& those) {
    return those.sum().item<double>() / static_cast<double>(from.numel());
  };
  if (type == at::kBool) return Description::truth(share(from), /*random=*/true);
  const auto [least, most] = at::aminmax(from);
  const Description found = Description::between(least.item<double>(), most.item<double>());
  if (found.is_constant()) return found;
  constexpr double kMany = 0.01;
  Description made = found;
  made.reaches_bounds = true;
  for (const double end : {found.low, found.high}) {
    const double of_all = share(from.eq(end));
    if (of_all >= kMany) made.add_atom({end, of_all, /*is_random=*/true});
  }
  return made;
}

// Copies a host tensor's values to a device tensor, if there are few values or the budget for
// computed values has room. Otherwise only notes a description of the values, as it always does
// while a graph is captured or if the host tensor has no contents.
void copy_from_host(const Tensor& to, const Tensor& from) {
  const double cost = static_cast<double>(to.numel());
  const bool is_few = are_few(allocation_of(to)->size, to.scalar_type());
  const bool is_wanted = !is_virtual(from) && runtime().current_capture(to.device().index()) == 0 &&
                         (is_few || Budget::instance().take_operations(cost));
  const Tensor values = is_wanted ? writable_values(to, true) : Tensor();
  if (!values.defined()) {
    note_described(to, in_type(described(from), from.scalar_type(), to.scalar_type()));
    return;
  }
  values.copy_(from);
  note_values(to, Source::computed);
}

void copy_on_device(const Tensor& to, const Tensor& from) {
  const bool is_few = are_few(allocation_of(to)->size, to.scalar_type());
  const Source source = source_of(from);
  const bool is_wanted =
      runtime().current_capture(to.device().index()) == 0 && can_be_read(from) &&
      (is_few || (source <= Source::random &&
                  Budget::instance().take_operations(static_cast<double>(to.numel()))));
  const Tensor values = is_wanted ? writable_values(to, true) : Tensor();
  const Tensor read = values.defined() ? read_values(from) : Tensor();
  if (read.defined() && source < Source::assumed) {
    values.copy_(read);
    note_values(to, source);
    return;
  }
  Known known = known_of(from);
  if (to.strides() != from.strides()) {
    known.series = 0;
    known.origin = {};
  }
  known.description = in_type(known.description, from.scalar_type(), to.scalar_type());
  if (!read.defined()) {
    note_same(to, known);
    return;
  }
  values.copy_(read);
  note_values(to, Source::assumed, known);
}

void copy_values(const Tensor& to, const Tensor& from) {
  if (!to.is_cuda()) {
    if (!is_virtual(to)) {
      to.copy_(read_by_host(from, current_operation().name));
    } else if (source_of(from) > Source::random) {
      runtime().assume(current_operation().name, kReadsUnknown);
    }
  } else if (allocation_of(to) != nullptr) {
    if (from.is_cuda()) {
      copy_on_device(to, from);
    } else {
      copy_from_host(to, from);
    }
  }
}

// Queues a copy from one device to another. The copy runs on the source's current stream. Before
// the copy, this stream waits for the target's current stream. The target's current stream then
// waits for the copy (aten/src/ATen/native/cuda/Copy.cu).
void launch_between(c10::DeviceIndex source, c10::DeviceIndex target, double bytes) {
  Runtime& state = runtime();
  state.wait_until(source, state.current_stream(source), state.done_at(target));
  state.launch(source, Work::transfer, peer_ns(bytes, state.device(source).properties));
  state.wait_until(target, state.current_stream(target), state.done_at(source));
}

// Returns whether the host goes on while memory that is not page-locked is copied to a device. CUDA
// copies such memory through a staging buffer. A copy of up to 64 KiB fits into the buffer. During
// a larger copy the host waits for the stream (NVIDIA's "API synchronization behavior", and the
// CUDA programming guide on asynchronous copies).
bool is_staged_at_once(double bytes, c10::DeviceIndex target) {
  constexpr double kMostAtOnce = 65536;
  return bytes <= kMostAtOnce || runtime().current_capture(target) != 0;
}

void move(const Tensor& to, const Tensor& from, bool non_blocking) {
  Runtime& state = runtime();
  const c10::DeviceIndex index = to.is_cuda() ? to.device().index() : from.device().index();
  const Device& on = state.device(index);
  const double bytes = static_cast<double>(to.numel()) * static_cast<double>(to.itemsize());
  const bool crosses = !to.is_cuda() || !from.is_cuda();
  const void* const host =
      crosses ? (to.is_cuda() ? from.const_data_ptr() : to.const_data_ptr()) : nullptr;
  const bool is_pinned_copy = crosses && is_pinned(host);
  state.pass_host_time(index, crosses ? kCopyHostNs : kDeviceCopyHostNs);
  if (crosses) {
    state.launch(index, Work::transfer,
                 transfer_ns(bytes, is_pinned_copy, to.is_cuda(), on.properties));
  } else if (to.device() != from.device()) {
    launch_between(from.device().index(), index, bytes);
  } else {
    state.launch(index, Work::compute, copy_ns(to, from, on.properties));
  }
  if (is_pinned_copy && non_blocking) {
    note_pinned_use(host, index, state.current_stream(index));
  } else if (crosses && !(non_blocking && to.is_cuda() && is_staged_at_once(bytes, index))) {
    state.synchronize(index);
  }
  copy_values(to, from);
}

// Implements aten::copy_. Temporaries are taken in the order of PyTorch's copy kernel
// (aten/src/ATen/native/cuda/Copy.cu).
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  check_access(self);
  check_access(source);
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, source);
  if (self.numel() == 0) return self;
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
