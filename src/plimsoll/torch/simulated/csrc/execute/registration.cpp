#include "execute/registration.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checks/checks.h"
#include "collectives/collectives.h"
#include "device/runtime.h"
#include "execute/kernels.h"
#include "execute/run.h"
#include "execute/virtual_tensors.h"
#include "layouts/layouts.h"
#include "rules/cudnn_rnn.h"

namespace plimsoll::simulated {
namespace {

// Operations that have a CUDA kernel of their own in a CUDA build. In a build without CUDA, PyTorch
// would compose each of them from other operations.
constexpr const char* kCudaKernels[] = {
#include "cuda_kernels.inc"
};

// plimsoll::assume: notes an assumption that plimsoll's Python code makes. `bytes` is the memory
// that the assumption is about, or 0.
void assume(c10::string_view operation, c10::string_view what, std::int64_t bytes) {
  runtime().assume(runtime().name(operation), what, static_cast<std::uint64_t>(bytes));
}

class LateOperators;
LateOperators* late_operators = nullptr;  // never destroyed: the dispatcher keeps it
// True if operations were registered since take_over_new last ran.
std::atomic<bool> has_new_operators = false;

struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

const WrittenOut& add_written_out() {
  static auto* const kernels = new WrittenOut(c10::DispatchKey::CUDA);
  add_storage_kernels(*kernels);
  add_copy_kernels(*kernels);
  add_reading_kernels(*kernels);
  add_checks(*kernels);
  add_embedding(*kernels);
  add_selecting_kernels(*kernels);
  add_choices(*kernels);
  add_launches(*kernels);
  add_launches_at_addresses(*kernels);
  add_padding_kernels(*kernels);
  add_collectives(*kernels);
  own_operations().def("assume(str operation, str what, int bytes=0) -> ()", TORCH_FN(assume));
  return *kernels;
}

void simulate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (has_new_operators) take_over_new_operators();
  run_simulated(op, stack);
}

void take_over(const c10::OperatorName& name) {
  put_kernel(name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&simulate>());
}

// Returns whether Python code registered an operation's CUDA kernel. The dispatcher's dump names
// the file that registered the kernel. A Python kernel runs unchanged: the operations that it calls
// are simulated.
bool is_python_kernel(const c10::OperatorHandle& op) {
  const std::string dump = op.dumpState();
  const std::string start = "\nCUDA: registered at ";
  const std::size_t place = dump.find(start);
  if (place == std::string::npos) return false;
  const std::size_t begin = place + start.size();
  const std::string where = dump.substr(begin, dump.find(" :: ", begin) - begin);
  const std::string file = where.substr(0, where.rfind(':'));
  return file.ends_with(".py") || file.starts_with('<');
}

// Collects operations that are registered after the call of `start`, for example by libraries that
// the program imports later. PyTorch calls onOperatorRegistered as soon as it has registered an
// operation's schema, and registers the operation's kernels after that.
class LateOperators final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    const std::lock_guard lock(mutex_);
    if (has_started_) waiting_.push_back(op.operator_name());
    if (has_started_) has_new_operators = true;
  }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const std::lock_guard lock(mutex_);
    std::erase(waiting_, op.operator_name());
  }
  // Starts to collect. Earlier notifications do not count: when a listener is added, the dispatcher
  // reports all operations that already exist.
  void start() {
    const std::lock_guard lock(mutex_);
    has_started_ = true;
  }
  // Simulates the collected operations that have a CUDA kernel by now; the rest wait for the next
  // call.
  void take_over_new() {
    has_new_operators = false;
    std::vector<c10::OperatorName> names;
    {
      // The dispatcher holds its own lock when it calls onOperatorRegistered, which locks mutex_.
      // So this function must not hold mutex_ when it calls the dispatcher: two threads could
      // deadlock.
      const std::lock_guard lock(mutex_);
      names.swap(waiting_);
    }
    std::vector<c10::OperatorName> without;
    for (const c10::OperatorName& name : names) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op) continue;
      if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
        without.push_back(name);
      } else if (!is_python_kernel(*op)) {
        take_over(name);
      }
    }
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.end(), without.begin(), without.end());
  }

 private:
  std::mutex mutex_;
  bool has_started_ = false;
  std::vector<c10::OperatorName> waiting_;
};

void listen_for_operators() {
  auto listener = std::make_unique<LateOperators>();
  late_operators = listener.get();
  static auto* const handle = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::move(listener)));
  static_cast<void>(handle);
  late_operators->start();
}

// Simulates all operations that have a kernel in a CUDA build, except two groups: those for which
// plimsoll has hand-written kernels, and those that only call other, simulated operations.
void simulate_all_but(const WrittenOut& written_out) {
  const std::set<std::string> named(std::begin(kCudaKernels), std::end(kCudaKernels));
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string text = full_name(name);
    // c10d's collectives are composed of copies, which are simulated.
    if (written_out.has(text) || text.starts_with("c10d::") || is_composed(text)) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const bool in_this_build = op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (!in_this_build && named.count(text) == 0) continue;
    take_over(name);
  }
}

}  // namespace

void take_over_new_operators() {
  if (late_operators == nullptr) return;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  late_operators->take_over_new();
}

void register_kernels() {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  register_virtual_tensors();

  static auto* const fallback =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&simulate>());
  simulate_all_but(add_written_out());
  add_recurrent_autocast();
  register_layouts();
  listen_for_operators();
}

}  // namespace plimsoll::simulated
