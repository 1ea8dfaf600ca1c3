#include "kernels.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <deque>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "call.h"
#include "collectives.h"
#include "runtime.h"
#include "virtual.h"
#include "written_out.h"

namespace plimsoll::simulated {
namespace {

// Operations that have a CUDA kernel of their own in a CUDA build, though a build without CUDA
// would compose them of others.
constexpr const char* kCudaKernels[] = {
#include "cuda_kernels.inc"
};

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

struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

const WrittenOut& add_written_out() {
  static auto* const kernels = new WrittenOut;
  add_storage_kernels(*kernels);
  add_copy_kernels(*kernels);
  add_reading_kernels(*kernels);
  add_selecting_kernels(*kernels);
  add_choices(*kernels);
  kernels->add("_assert_async", torch::CppFunction::makeFromBoxedFunction<&nothing>());
  kernels->add("_assert_async.msg", torch::CppFunction::makeFromBoxedFunction<&nothing>());
  kernels->own().def("assume(str operation, str what) -> ()", TORCH_FN(assume));
  return *kernels;
}

// All operations that have a kernel in a CUDA build, but those that are written out.
void simulate_all_but(const WrittenOut& written_out) {
  const std::set<std::string> named(std::begin(kCudaKernels), std::end(kCudaKernels));
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string text =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    // Collectives are composed of copies.
    if (written_out.has(text) || text.starts_with("c10d::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const bool in_this_build = op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (!in_this_build && named.count(text) == 0) continue;
    handles->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_simulated>(),
        std::nullopt, nullptr, "plimsoll"));
  }
}

}  // namespace

void register_kernels() {
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
  simulate_all_but(add_written_out());
}

}  // namespace plimsoll::simulated
