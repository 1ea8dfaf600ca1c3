#include "execute/virtual_tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>

#include "checks/arguments.h"
#include "device/host_account.h"
#include "device/tensors.h"
#include "device/virtual.h"
#include "operation/call.h"
#include "operation/written_out.h"
#include "values/budget.h"
#include "values/host_generator.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

constexpr std::size_t kLeastBytes = std::size_t{1} << 20;
// If a large host tensor gets contents, plimsoll takes this many operations for each element from
// the budget for values (values/budget.h).
constexpr double kPerElement = 100;
// An integer tensor with fewer bytes than this always gets contents. Its elements are often indices
// or counts, which programs read.
constexpr std::size_t kLeastIntegerBytes = std::size_t{256} << 20;

struct Mapping {
  void* address;
  std::size_t size;
  bool is_budgeted;
};

void unmap(void* context) {
  const auto* const mapping = static_cast<Mapping*>(context);
  ::munmap(mapping->address, mapping->size);
  if (mapping->is_budgeted) {
    Budget::instance().give_bytes(mapping->size);
  } else {
    note_absent(-static_cast<std::int64_t>(mapping->size));
  }
  delete mapping;
}

class MappingAllocator final : public c10::Allocator {
 public:
  explicit MappingAllocator(bool is_budgeted) : is_budgeted_(is_budgeted) {}
  c10::DataPtr allocate(std::size_t size) override {
    void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "the host has no address space for ", size, " bytes");
    if (!is_budgeted_) note_absent(static_cast<std::int64_t>(size));
    return {address, new Mapping{address, size, is_budgeted_}, &unmap,
            c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  bool is_budgeted_;
};

// Return the allocators of large host tensors. If the budget for computing values has room for a
// tensor, the tensor gets contents and its memory comes from budgeted_allocator. Otherwise it gets
// no contents, and its memory comes from virtual_allocator.
c10::Allocator* virtual_allocator() {
  static auto* const allocator = new MappingAllocator(false);
  return allocator;
}
c10::Allocator* budgeted_allocator() {
  static auto* const allocator = new MappingAllocator(true);
  return allocator;
}

constexpr c10::DispatchKeySet kHost{c10::DispatchKey::CPU};
constexpr c10::DispatchKeySet kVirtual{c10::DispatchKey::CPU, kVirtualKey};

// Holds the allocator and the dispatch keys of a large host tensor.
struct Place {
  c10::Allocator* allocator;
  c10::DispatchKeySet keys;
};

std::optional<Place> place_of(std::size_t elements, c10::ScalarType type, bool pinned) {
  if (WithContentsScope::is_entered()) return std::nullopt;
  const std::size_t bytes = elements * c10::elementSize(type);
  const bool is_integer = c10::isIntegralType(type, /*includeBool=*/true);
  if (pinned || bytes < (is_integer ? kLeastIntegerBytes : kLeastBytes)) return std::nullopt;
  Budget& budget = Budget::instance();
  if (budget.has_bytes(bytes) &&
      budget.take_operations(kPerElement * static_cast<double>(elements)) &&
      budget.take_bytes(bytes)) {
    return Place{budgeted_allocator(), kHost};
  }
  return Place{virtual_allocator(), kVirtual};
}

Tensor host_empty(at::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                  std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                  std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  std::size_t elements = 1;
  for (const std::int64_t length : size)
    elements *= static_cast<std::size_t>(std::max<std::int64_t>(length, 0));
  if (const auto place = place_of(elements, type, pin_memory.value_or(false))) {
    return at::detail::empty_generic(size, place->allocator, place->keys, type, format);
  }
  return at::detail::empty_cpu(size, dtype, layout, device, pin_memory, format);
}

Tensor host_empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                          std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                          std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  const std::size_t elements = at::detail::computeStorageNbytes(size, stride, 1);
  if (const auto place = place_of(elements, type, pin_memory.value_or(false))) {
    return at::detail::empty_strided_generic(size, stride, place->allocator, place->keys, type);
  }
  return at::detail::empty_strided_cpu(size, stride, dtype, layout, device, pin_memory);
}

// Returns whether a tensor is on a device other than the host: a GPU, or `meta` (no contents).
bool is_elsewhere(const Tensor& tensor) { return tensor.defined() && !tensor.is_cpu(); }

bool has_device_tensor(const c10::IValue& value) {
  if (value.isTensor()) return is_elsewhere(value.toTensor());
  if (value.isTensorList()) {
    const auto tensors = value.toTensorVector();
    return std::any_of(tensors.begin(), tensors.end(), is_elsewhere);
  }
  return false;
}

// Makes a result for an operation that is not computed. A result with contents is made up; the
// report says so, because PyTorch, and not plimsoll, serves the program's later reads of it.
Tensor unknown_like(const Tensor& shape, std::uint32_t operation) {
  if (!shape.defined() || !shape.is_meta()) return shape;
  Tensor made = at::empty_strided(shape.sizes(), shape.strides(),
                                  shape.options().device(c10::DeviceType::CPU));
  if (is_virtual(made)) return made;
  fill_unknown(made);
  runtime().assume(operation, kComputesWithoutContents);
  return made;
}

// Pushes the results: the tensors that the operation writes, and new tensors without contents.
void finish(const Call& call, torch::jit::Stack& stack) {
  const std::vector<Result>& results = call.info().results;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const c10::IValue shape = i < call.shapes().size() ? call.shapes()[i] : c10::IValue();
    if (results[i].kind == Result::Kind::argument) {
      const c10::IValue& target = call.argument(results[i].argument);
      if (shape.isTensor() && target.isTensor() &&
          target.toTensor().sizes() != shape.toTensor().sizes()) {
        target.toTensor().resize_(shape.toTensor().sizes());
      }
      stack.push_back(target);
    } else if (i < call.shapes().size()) {
      stack.push_back(map_tensors(
          shape, [&](const Tensor& each) { return unknown_like(each, call.info().name); }));
    }
  }
}

void run_virtual(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const OperationInfo& info = info_of(op);
  const std::size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  const bool computes = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) || info.has(kCopies);
  const bool reads = info.has(kReadByHost);
  const bool on_device = std::any_of(arguments.begin(), arguments.end(), has_device_tensor);
  if (reads) {
    runtime().assume(info.name, kReadsWithoutContents);
  }
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kVirtualKey);
  if (info.is_view() || !computes || reads || info.has(kMovesStorage) || on_device) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const torch::jit::Stack saved(arguments.begin(), arguments.end());
  Call call(op, info, *stack);
  check_arguments(call);
  try {
    call.infer();
  } catch (const std::exception&) {
    // The results' sizes depend on values. So the operation is really run, on the zeros that the
    // tensors contain.
    stack->insert(stack->end(), saved.begin(), saved.end());
    op.redispatchBoxed(below, stack);
    return;
  }
  if (info.is_random) pass_host_numbers(call);
  finish(call, *stack);
}

}  // namespace

void register_virtual_tensors() {
  static auto* const fallback =
      new torch::Library(torch::Library::IMPL, "_", kVirtualKey, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&run_virtual>());
  // PyTorch treats kVirtualKey as a backend. If an operation has one kernel for all backends,
  // PyTorch prefers that kernel to the fallback of a backend. So plimsoll registers run_virtual for
  // each of these operations.
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (op && op->hasSchema() &&
        (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))) {
      put_kernel(name, kVirtualKey, c10::KernelFunction::makeFromBoxedFunction<&run_virtual>());
    }
  }
  static auto* const host =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  host->impl("empty.memory_format", TORCH_FN(host_empty));
  host->impl("empty_strided", TORCH_FN(host_empty_strided));
}

}  // namespace plimsoll::simulated
