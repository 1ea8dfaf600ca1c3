// Operations whose kernels do more than fill new tensors: copies, reads by the host, sizes that
// depend on data, and storage.
#include "kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/nonzero.h>
#include <c10/util/Exception.h>

#include <deque>
#include <set>
#include <string>

#include "attention.h"
#include "call.h"
#include "collectives.h"
#include "memory.h"
#include "runtime.h"
#include "virtual.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex index) : before_(runtime().current_device()) {
    if (index >= 0) runtime().set_device(index);
  }
  ~DeviceScope() { runtime().set_device(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  c10::DeviceIndex before_;
};

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

// --- copies --------------------------------------------------------------------------------------

constexpr const char* kReadPlaceholders = "the host read placeholders (1; integers: 0)";

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
      runtime().assume(current_operation().name, kReadPlaceholders);
    }
    to.copy_(known);
  } else {
    if (!is_virtual(to)) fill_unknown(to);
    runtime().assume(current_operation().name, kReadPlaceholders);
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

// --- what the host reads -------------------------------------------------------------------------

c10::Scalar local_scalar_dense(const Tensor& self) {
  runtime().synchronize(self.device().index());
  const Tensor values = values_of(self);
  const Allocation* const allocation = allocation_of(self);
  if (allocation == nullptr || allocation->is_placeholder) {
    runtime().assume(runtime().name("aten::_local_scalar_dense"), kReadPlaceholders);
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

// --- storage -------------------------------------------------------------------------------------

void resize_storage(c10::StorageImpl& storage, std::size_t bytes, c10::DeviceIndex device) {
  const DeviceScope scope(device);
  c10::DataPtr memory = device_allocator()->allocate(bytes);
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

// plimsoll::resize_storage, for torch.UntypedStorage.resize_: the contents do not survive.
void resize_storage_of(const Tensor& self, std::int64_t bytes) {
  resize_storage(*self.storage().unsafeGetStorageImpl(), static_cast<std::size_t>(bytes),
                 self.device().index());
}

void record_stream(Tensor& self, c10::Stream stream) {
  const Allocation* const allocation = allocation_of(self);
  if (allocation == nullptr) return;
  Runtime& state = runtime();
  state.api->record_stream(state.device(allocation->device).engine, allocation->address,
                           static_cast<std::uint64_t>(stream.id()));
}

std::int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& mask, double dropout, bool is_causal,
                              std::optional<double>, bool enable_gqa) {
  return choose_attention(
      {query, key, value, mask.value_or(Tensor()), dropout, is_causal, enable_gqa});
}

// Whether an encoder may skip padding, which depends on the mask; nested tensors are not simulated.
bool mask_left_aligned(const Tensor&, const Tensor&) {
  runtime().assume(runtime().name("aten::_nested_tensor_from_mask_left_aligned"),
                   "padding is computed, not skipped by nested tensors");
  return false;
}

// cuDNN's own kernel takes targets of the host, of 32 bits; PyTorch's takes any.
template <typename Lengths>
bool use_cudnn_ctc_loss(const Tensor& log_probs, const Tensor& targets, Lengths, Lengths,
                        std::int64_t blank) {
  if (targets.is_cpu() && targets.dim() == 1 && targets.scalar_type() == at::kInt && blank == 0 &&
      log_probs.scalar_type() == at::kFloat) {
    runtime().assume(runtime().name("aten::_use_cudnn_ctc_loss"),
                     "PyTorch's kernel computes it, not cuDNN's");
  }
  return false;
}

template <typename Lengths>
bool use_miopen_ctc_loss(const Tensor&, const Tensor&, Lengths, Lengths, std::int64_t) {
  return false;
}

// plimsoll::can_use_attention, for torch.backends.cuda.can_use_flash_attention and the like.
bool can_use_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::optional<Tensor>& mask, double dropout, bool is_causal,
                       bool enable_gqa, std::int64_t backend) {
  return fits_attention(
      {query, key, value, mask.value_or(Tensor()), dropout, is_causal, enable_gqa}, backend);
}

// plimsoll::assume, for what Python pretends.
void assume(c10::string_view operation, c10::string_view what) {
  runtime().assume(runtime().name(operation), what);
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "plimsoll cannot simulate the operation ", op.schema().name(),
                              ": sparse tensors on a GPU are not modelled");
}

void nothing(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

// --- sizes that depend on data -------------------------------------------------------------------

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

struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

bool is_written_out(const std::string& name) {
  static const std::set<std::string> names{"aten::empty.memory_format",
                                           "aten::empty_strided",
                                           "aten::copy_",
                                           "aten::_local_scalar_dense",
                                           "aten::equal",
                                           "aten::resize_",
                                           "aten::set_",
                                           "aten::set_.source_Storage",
                                           "aten::set_.source_Tensor",
                                           "aten::set_.source_Storage_storage_offset",
                                           "aten::record_stream",
                                           "aten::_fused_sdp_choice",
                                           "aten::_nested_tensor_from_mask_left_aligned",
                                           "aten::nonzero",
                                           "aten::_use_cudnn_ctc_loss",
                                           "aten::_use_cudnn_ctc_loss.Tensor",
                                           "aten::_use_miopen_ctc_loss",
                                           "aten::_use_miopen_ctc_loss.Tensor",
                                           "aten::_assert_async",
                                           "aten::_assert_async.msg"};
  return names.count(name) != 0;
}

void register_kernels(const std::vector<std::string>& with_cuda_kernels) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  register_virtual_tensors();
  register_collectives();
  static auto* const fallback =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&run_simulated>());

  for (const auto key : {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA}) {
    static auto* const sparse = new std::deque<torch::Library>;
    sparse->emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    sparse->back().fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
  }

  std::set<std::string> named(with_cuda_kernels.begin(), with_cuda_kernels.end());
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string text =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    // Collectives are composed of copies.
    if (is_written_out(text) || text.rfind("c10d::", 0) == 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const bool in_this_build = op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (!in_this_build && named.count(text) == 0) continue;
    handles->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_simulated>(),
        std::nullopt, nullptr, "plimsoll"));
  }

  static auto* const own =
      new torch::Library(torch::Library::DEF, "plimsoll", std::nullopt, __FILE__, __LINE__);
  own->def("resize_storage(Tensor tensor, int bytes) -> ()");
  own->impl("resize_storage", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                              TORCH_FN(resize_storage_of)));

  own->def("assume(str operation, str what) -> ()", TORCH_FN(assume));
  own->def(
      "can_use_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, "
      "bool is_causal, bool enable_gqa, int backend) -> bool");
  own->impl("can_use_attention", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                                 TORCH_FN(can_use_attention)));

  static auto* const aten =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  aten->impl("empty.memory_format", TORCH_FN(empty_memory_format));
  aten->impl("empty_strided", TORCH_FN(empty_strided));
  aten->impl("copy_", TORCH_FN(copy_));
  aten->impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  aten->impl("equal", TORCH_FN(equal));
  aten->impl("resize_", TORCH_FN(resize_));
  aten->impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  aten->impl("set_.source_Storage", TORCH_FN(set_source_storage));
  aten->impl("set_.source_Tensor", TORCH_FN(set_tensor));
  aten->impl("set_", TORCH_FN(set_nothing));
  aten->impl("record_stream", TORCH_FN(record_stream));
  aten->impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  aten->impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(mask_left_aligned));
  aten->impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
  static auto* const autograd = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__);
  autograd->impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
  aten->impl("nonzero", TORCH_FN(nonzero));
  aten->impl("_use_cudnn_ctc_loss", TORCH_FN(use_cudnn_ctc_loss<at::IntArrayRef>));
  aten->impl("_use_cudnn_ctc_loss.Tensor", TORCH_FN(use_cudnn_ctc_loss<const Tensor&>));
  if (dispatcher.findSchema({"aten::_use_miopen_ctc_loss", ""})) {  // since PyTorch 2.13
    aten->impl("_use_miopen_ctc_loss", TORCH_FN(use_miopen_ctc_loss<at::IntArrayRef>));
    aten->impl("_use_miopen_ctc_loss.Tensor", TORCH_FN(use_miopen_ctc_loss<const Tensor&>));
  }
  aten->impl("_assert_async", torch::CppFunction::makeFromBoxedFunction<&nothing>());
  aten->impl("_assert_async.msg", torch::CppFunction::makeFromBoxedFunction<&nothing>());
}

}  // namespace plimsoll::simulated
