#include "layouts/layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <span>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using c10::DispatchKey;

// Operations on COO tensors whose GPU kernel differs from the host's, so that the host's kernel
// cannot run in its place.
constexpr const char* kCoordinateKernels[] = {
#include "coordinate_kernels.inc"
};
constexpr const char* kCompressedKernels[] = {
#include "compressed_kernels.inc"
};
constexpr const char* kNestedKernels[] = {
#include "nested_kernels.inc"
};
// Operations that make sparse or nested tensors, or take them as arguments. Their host kernels call
// only operations on strided tensors, so these kernels run unchanged on simulated tensors.
constexpr const char* kComposed[] = {
#include "composed_layouts.inc"
};

struct Layout {
  const char* name;
  DispatchKey key;
  DispatchKey on_host;
  std::span<const char* const> own;
  void (*add_kernels)(WrittenOut&);
};

constexpr Layout kLayouts[] = {
    {"sparse tensors in COO layout", DispatchKey::SparseCUDA, DispatchKey::SparseCPU,
     kCoordinateKernels, add_coordinate_kernels},
    {"sparse tensors in a compressed layout", DispatchKey::SparseCsrCUDA, DispatchKey::SparseCsrCPU,
     kCompressedKernels, add_compressed_kernels},
    {"nested tensors", DispatchKey::NestedTensorCUDA, DispatchKey::NestedTensorCPU, kNestedKernels,
     add_nested_kernels},
};

// The next two functions are boxed kernels: they get their arguments on a stack.

template <DispatchKey on_host>
void run_that_of_host(const c10::OperatorHandle& op, c10::DispatchKeySet,
                      torch::jit::Stack* stack) {
  const OperationScope scope(runtime().name(op.schema().name()), current_operation().role);
  op.redispatchBoxed(c10::DispatchKeySet(on_host), stack);
}

template <std::size_t layout>
void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "plimsoll cannot simulate the operation ", op.schema().name(),
                              " on ", kLayouts[layout].name,
                              ": its kernel for a GPU is not modelled");
}

bool is_named(std::span<const char* const> names, const std::string& full) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return full == std::string("aten::") + name; });
}

template <std::size_t index>
void register_layout() {
  constexpr const Layout& layout = kLayouts[index];
  constexpr DispatchKey on_host = layout.on_host;
  static auto* const fallback =
      new torch::Library(torch::Library::IMPL, "_", layout.key, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<index>>());
  static auto* const kernels = new WrittenOut(layout.key);
  layout.add_kernels(*kernels);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string full = full_name(name);
    const auto op = dispatcher.findOp(name);
    if (kernels->has(full) || !op || !op->hasSchema()) continue;
    if (op->hasKernelForDispatchKey(on_host) && !is_named(layout.own, full)) {
      put_kernel(name, layout.key,
                 c10::KernelFunction::makeFromBoxedFunction<&run_that_of_host<on_host>>());
    } else if (op->hasKernelForDispatchKey(layout.key)) {  // true only in PyTorch's CUDA builds
      put_kernel(name, layout.key, c10::KernelFunction::makeFromBoxedFunction<&refuse<index>>());
    }
  }
}

}  // namespace

bool is_composed(const std::string& full) { return is_named(kComposed, full); }

void register_layouts() {
  for (const char* const text : kComposed) {
    const std::string name = text;
    const std::size_t dot = name.find('.');
    put_kernel(
        {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)},
        DispatchKey::CUDA,
        c10::KernelFunction::makeFromBoxedFunction<&run_that_of_host<DispatchKey::CPU>>());
  }
  register_layout<0>();
  register_layout<1>();
  register_layout<2>();
}

}  // namespace plimsoll::simulated
