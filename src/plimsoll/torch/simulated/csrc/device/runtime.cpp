#include "device/runtime.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstdlib>

#include "device/host_times.h"

// The process that loads this library defines these functions of the Python interpreter.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int state);
int PyThreadState_SetAsyncExc(unsigned long thread, void* exception);
}

namespace plimsoll::simulated {
namespace {

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::vector<c10::StreamId> streams_of_thread;
thread_local CurrentOperation operation_of_thread;

constexpr int kAssertFailed = 710;        // cudaErrorAssert
constexpr int kInvalidDevice = 101;       // cudaErrorInvalidDevice
constexpr int kCaptureUnsupported = 900;  // cudaErrorStreamCaptureUnsupported

template <typename Row>
std::size_t copy_rows(const std::vector<Row>& rows, Row* to, std::size_t most) {
  std::copy_n(rows.begin(), std::min(rows.size(), most), to);
  return rows.size();
}

}  // namespace

CurrentOperation& current_operation() { return operation_of_thread; }

Runtime& Runtime::instance() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

void Runtime::initialize() {
  // This tells PyTorch's C++ code that CUDA is initialized. Before that, PyTorch takes no memory
  // for pinned tensors.
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  static std::once_flag once;
  std::call_once(once,
                 [] { ::pthread_atfork(nullptr, nullptr, [] { runtime().is_bad_fork = true; }); });
}

void Runtime::use(c10::DeviceIndex index) {
  TORCH_CHECK(!is_bad_fork,
              "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
              "you must use the 'spawn' start method");
  Device& on = devices[static_cast<std::size_t>(index)];
  if (!on.is_used.exchange(true)) callbacks.first_use(static_cast<std::uint64_t>(index));
}

void Runtime::load(c10::DeviceIndex index, Library library) {
  const std::uint32_t bit = 1U << static_cast<unsigned>(library);
  std::atomic<std::uint32_t>& loaded = devices[static_cast<std::size_t>(index)].loaded;
  if ((loaded & bit) != 0 || (loaded.fetch_or(bit) & bit) != 0) return;
  load_again(index, library);
}

void Runtime::load_again(c10::DeviceIndex index, Library library) {
  callbacks.load(static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(library));
}

void Runtime::pass_host_time(c10::DeviceIndex index, double ns) {
  if (is_over) return;
  Device& on = devices[static_cast<std::size_t>(index)];
  gpus->advance(on.gpu, ns);
  const std::lock_guard lock(mutex_);
  on.clock.host_ns += ns;
}

void Runtime::launch(c10::DeviceIndex index, Work work, double ns) {
  if (is_over) return;
  refuse_after_failure();
  Device& on = devices[static_cast<std::size_t>(index)];
  if (work != Work::transfer) load(index, Library::kernels);
  if (const std::uint64_t capture = on.capture; capture != 0) {
    const std::lock_guard lock(mutex_);
    CapturedWork& work = captured_work_[capture];
    work.device = index;
    work.ns += ns;
    ++work.nodes;
    return;
  }
  const auto queue = static_cast<std::uint64_t>(current_stream(index));
  const double begin = gpus->done_at(on.gpu, queue);
  gpus->launch(on.gpu, queue, ns);
  const std::uint32_t number = record_sites ? stack(false) : 0;
  const std::lock_guard lock(mutex_);
  const auto note = [end = begin + ns, begin](double& until, double& sum) {
    sum += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  };
  note(on.clock.ends_ns, on.clock.busy_ns);
  if (work == Work::compute) note(on.clock.compute_ends_ns, on.clock.compute_ns);
  if (work != Work::transfer) note(on.clock.no_copies_ends_ns, on.clock.no_copies_ns);
  if (work == Work::collective || work == Work::network) on.clock.collective_ns += ns;
  if (work == Work::network) on.clock.network_ns += ns;
  ++on.clock.kernels;
  if (!record_sites) return;
  if (on.stack_times.size() <= number) on.stack_times.resize(2 * std::size_t{number} + 1);
  on.stack_times[number].ns += ns;
}

double Runtime::done_at(c10::DeviceIndex index) const {
  return gpus->done_at(device(index).gpu, static_cast<std::uint64_t>(current_stream(index)));
}

void Runtime::wait_until(c10::DeviceIndex index, c10::StreamId stream, double ns) {
  if (is_over || current_capture(index) != 0) return;
  const auto queue = static_cast<std::uint64_t>(stream);
  const double idle = ns - gpus->done_at(device(index).gpu, queue);
  if (idle > 0) gpus->launch(device(index).gpu, queue, idle);
}

Clock Runtime::clock(c10::DeviceIndex index) {
  const std::lock_guard lock(mutex_);
  return device(index).clock;
}

std::size_t Runtime::copy_stack_times(c10::DeviceIndex index, StackTime* to, std::size_t most) {
  const std::lock_guard lock(mutex_);
  return copy_rows(device(index).stack_times, to, most);
}

void Runtime::refuse_while_capturing(c10::DeviceIndex index) const {
  if (current_capture(index) == 0) return;
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kCaptureUnsupported,
                              "CUDA error: operation not permitted when stream is capturing");
}

std::uint64_t Runtime::set_capturing(c10::DeviceIndex index, bool on) {
  const std::lock_guard lock(mutex_);
  std::atomic<std::uint64_t>& capture = devices[static_cast<std::size_t>(index)].capture;
  return on ? capture = ++last_capture_ : capture.exchange(0);
}

void Runtime::launch_captured(std::uint64_t capture) {
  CapturedWork work;
  {
    const std::lock_guard lock(mutex_);
    const auto place = captured_work_.find(capture);
    if (place != captured_work_.end()) work = place->second;
  }
  if (work.ns <= 0) return;
  pass_host_time(work.device, kGraphHostNs);
  launch(work.device, Work::compute, work.ns);
}

void Runtime::forget_capture(std::uint64_t capture) {
  const std::lock_guard lock(mutex_);
  captured_work_.erase(capture);
}

std::uint64_t Runtime::captured_nodes(std::uint64_t capture) {
  const std::lock_guard lock(mutex_);
  const auto place = captured_work_.find(capture);
  return place == captured_work_.end() ? 0 : place->second.nodes;
}

void Runtime::fail(const std::string& why) {
  const std::uint32_t where = recorder->capture_stack();
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = Failure{why, where};
  has_failed = true;
}

std::optional<Runtime::Failure> Runtime::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Runtime::refuse_after_failure() {
  if (!has_failed) return;
  throw c10::AcceleratorError(
      {__func__, __FILE__, __LINE__}, kAssertFailed,
      std::string(kDeviceAssert) + "\nThe GPU failed before: " + failure().value_or(Failure()).why);
}

void Runtime::synchronize(c10::DeviceIndex index) {
  refuse_after_failure();
  refuse_while_capturing(index);
  gpus->synchronize_stream(device(index).gpu, static_cast<std::uint64_t>(current_stream(index)));
}

std::string Runtime::no_such_device(int index) const {
  std::string text = "CUDA error: invalid device ordinal";
  if (index < 0) return text;
  text += "\nGPU " + std::to_string(index) + " was asked for";
  const char* const rank = std::getenv("LOCAL_RANK");
  if (rank != nullptr && rank == std::to_string(index)) text += ", as LOCAL_RANK says";
  const std::size_t count = devices.size();
  return text + ", and " + std::to_string(count) + (count == 1 ? " is" : " are") +
         " simulated, numbered from 0; --gpus " + std::to_string(index + 1) + " simulates enough";
}

c10::DeviceIndex Runtime::current_device() const { return device_of_thread; }

void Runtime::set_device(c10::DeviceIndex index) {
  if (index < 0 || static_cast<std::size_t>(index) >= devices.size()) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kInvalidDevice,
                                no_such_device(index));
  }
  device_of_thread = index;
}

c10::StreamId Runtime::current_stream(c10::DeviceIndex index) const {
  const auto place = static_cast<std::size_t>(index);
  return place < streams_of_thread.size() ? streams_of_thread[place] : 0;
}

void Runtime::set_stream(c10::DeviceIndex index, c10::StreamId stream) {
  if (streams_of_thread.size() < devices.size()) streams_of_thread.resize(devices.size());
  streams_of_thread[static_cast<std::size_t>(index)] = stream;
}

c10::StreamId Runtime::new_stream(c10::DeviceIndex index, int priority) {
  use(index);
  load(index, Library::streams);
  // PyTorch has 32 streams for each priority and hands them out in turn. The stream's id contains
  // the priority.
  const std::lock_guard lock(mutex_);
  const auto turn = next_stream_++ % 32;
  return (turn << 5) | (priority < 0 ? 3 : 1);
}

void Runtime::end_program() const {
  const int state = PyGILState_Ensure();
  PyThreadState_SetAsyncExc(ending.thread, ending.exception);
  PyGILState_Release(state);
}

std::uint32_t Runtime::name(std::string_view text) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] =
      name_numbers_.try_emplace(std::string(text), static_cast<std::uint32_t>(names_.size()));
  if (is_new) names_.emplace_back(text);
  return place->second;
}

const std::string& Runtime::name_at(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return names_[number];
}

std::size_t Runtime::copy_sites(Site* to, std::size_t most) {
  const std::lock_guard lock(mutex_);
  return copy_rows(sites_, to, most);
}

std::size_t Runtime::copy_uncertain_memory(UncertainMemory* to, std::size_t most) {
  const std::lock_guard lock(mutex_);
  return copy_rows(uncertain_memory_, to, most);
}

std::size_t Runtime::copy_assumptions(Assumption* to, std::size_t most) {
  const std::lock_guard lock(mutex_);
  return copy_rows(assumptions_, to, most);
}

std::uint32_t Runtime::stack(bool notes) {
  if (!record_stacks) return 0;
  // PyTorch gives an operation's autograd node a number before the operation runs. In the forward
  // pass, this function stores the operation's call stack under that number. In the backward pass,
  // it looks up the stack by the node's number.
  const auto node = torch::autograd::get_current_node();
  std::uint32_t captured = 0;
  if (node == nullptr || c10::GradMode::is_enabled()) captured = recorder->capture_stack();
  if (node != nullptr) {
    // A checkpoint recomputes its forward pass within a node of the backward pass. Python's current
    // stack shows the recomputed operation. The stack stored for the node shows the operation whose
    // gradient needs it.
    const std::uint32_t forward = stack_of_forward(node->sequence_nr());
    if (captured == 0) return forward;
    if (forward != 0) captured = joined_stack(captured, forward);
  }
  if (notes && c10::GradMode::is_enabled()) {
    const std::uint64_t next = at::sequence_number::peek();
    if (next > 0 && next < (1U << 28)) {
      const std::lock_guard lock(mutex_);
      if (stack_of_sequence_.size() < next) stack_of_sequence_.resize(next + next / 2);
      stack_of_sequence_[next - 1] = captured;
    }
  }
  return captured;
}

std::uint32_t Runtime::stack_of_forward(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  return sequence < stack_of_sequence_.size() ? stack_of_sequence_[sequence] : 0;
}

std::uint32_t Runtime::joined_stack(std::uint32_t inner, std::uint32_t outer) {
  const std::uint64_t key = (std::uint64_t{inner} << 32) | outer;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = joined_stacks_.find(key); found != joined_stacks_.end()) {
      return found->second;
    }
  }
  const std::uint32_t joined = recorder->join_stacks(inner, outer);  // takes the interpreter's lock
  const std::lock_guard lock(mutex_);
  return joined_stacks_.try_emplace(key, joined).first->second;
}

std::uint32_t Runtime::site(const CurrentOperation& operation) {
  if (!record_sites) return 0;
  const std::uint32_t number = stack();
  const Phase phase = torch::autograd::get_current_node() ? Phase::backward : Phase::forward;
  const bool grad = c10::GradMode::is_enabled();
  const std::uint64_t key = (std::uint64_t{number} << 32) | (std::uint64_t{operation.name} << 8) |
                            (static_cast<std::uint64_t>(operation.role) << 4) |
                            (operation.has_grad_fn ? 8U : 0U) |
                            (static_cast<std::uint64_t>(phase) << 1) | (grad ? 1U : 0U);
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] =
      site_numbers_.try_emplace(key, static_cast<std::uint32_t>(sites_.size()));
  if (is_new) {
    sites_.push_back({number, operation.name, operation.role, phase, grad, operation.has_grad_fn});
  }
  return place->second;
}

void Runtime::note_uncertain(c10::DeviceIndex index, UncertainMemory memory) {
  if (!record_sites) return;
  plimsoll_statistics statistics{};
  engines->statistics(device(index).engine, &statistics);
  memory.allocations = static_cast<std::uint64_t>(statistics.allocation.all.allocated);
  memory.frees = static_cast<std::uint64_t>(statistics.allocation.all.freed);
  memory.stream = static_cast<std::uint64_t>(current_stream(index));
  memory.device = index;
  const std::lock_guard lock(mutex_);
  uncertain_memory_.push_back(memory);
}

void Runtime::assume(std::uint32_t operation, std::string_view what, std::uint64_t bytes) {
  const std::uint32_t number = stack();
  const std::uint32_t text = name(what);
  const std::uint64_t key =
      ((std::uint64_t{number} * 1000003U + operation) * 1000003U) + std::uint64_t{text};
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = assumption_places_.try_emplace(key, assumptions_.size());
  if (is_new) assumptions_.push_back({number, operation, text});
  Assumption& assumption = assumptions_[place->second];
  ++assumption.count;
  assumption.bytes = std::max(assumption.bytes, bytes);
}

}  // namespace plimsoll::simulated
