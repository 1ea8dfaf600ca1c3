// The time that the host takes to queue an operation's kernels.
#include <c10/util/hash.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "operation/call.h"
#include "timing/timing.h"

namespace plimsoll::simulated {
namespace {

// Returns whether the operation runs for the first time on this device with operands of these
// types, sizes and strides.
bool is_planned_first(const Call& call) {
  static std::mutex mutex;
  static auto* const known = new std::unordered_set<std::size_t>;
  std::size_t key = c10::get_hash(call.info().name, call.device());
  for (const at::Tensor& input : call.inputs()) {
    key = c10::get_hash(key, static_cast<int>(input.scalar_type()));
    for (const auto size : input.sizes()) key = c10::get_hash(key, size);
    for (const auto stride : input.strides()) key = c10::get_hash(key, stride);
  }
  const std::lock_guard lock(mutex);
  return known->insert(key).second;
}

// When a backward pass begins, the autograd engine's threads wake up. Later, the optimizer looks at
// all parameters before it calls its first operation on lists of tensors. host_ns adds the time of
// the threads and of the optimizer. `optimizer_is_due` is true from the start of a pass until
// host_ns has added the optimizer's time.
//
// PyTorch numbers backward passes in the order in which they begin. `last_backward` is the highest
// number so far. A pass that runs inside another pass, as with checkpointing, has its own number.
std::atomic<int> last_backward = -1;
std::atomic<bool> optimizer_is_due = false;

bool begins_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  int last = last_backward;
  while (task > last) {
    if (!last_backward.compare_exchange_weak(last, task)) continue;
    optimizer_is_due = true;
    return true;
  }
  return false;
}

}  // namespace

// Returns the host's time for a call: for the call itself, for Python's work around it, and for the
// autograd engine. The constants lie in the middle of the times measured on the hosts of H200s and
// H100s (benchmarks/host.py, steps.py). Between hosts, these times differ by about 50 %.
double host_ns(const Call& call, const KernelTime* row) {
  constexpr double kAny = 8000;
  constexpr double kAround = 17000;
  constexpr double kAroundWithoutGraph = 9000;
  constexpr double kAroundInBackward = 22000;
  constexpr double kOfBackward = 240000;
  constexpr double kOfOptimizer = 320000;
  constexpr double kOfList = 8000;
  constexpr double kInList = 800;
  constexpr double kOfFreshInList = 3500;
  constexpr double kPlanOfInference = .75;  // ratio of planning times, inference to training
  const bool is_backward = torch::autograd::get_current_node() != nullptr;
  const bool has_graph = at::GradMode::is_enabled();
  double time = row != nullptr && row->host_ns != 0 ? static_cast<double>(row->host_ns) : kAny;
  time += is_backward ? kAroundInBackward : has_graph ? kAround : kAroundWithoutGraph;
  if (begins_backward()) time += kOfBackward;
  if (row != nullptr && row->plan_us != 0 && is_planned_first(call)) {
    const bool is_inference = !has_graph && !is_backward;
    time += static_cast<double>(row->plan_us) * 1e3 * (is_inference ? kPlanOfInference : 1);
  }
  const bool is_on_lists =
      call.info().has(kOnLists) || call.info().plain_name.starts_with("_fused_");
  if (!is_on_lists) return time;
  if (optimizer_is_due.exchange(false)) time += kOfOptimizer;
  const auto& results = call.info().results;
  const bool is_fresh = !results.empty() && results[0].kind == Result::Kind::fresh;
  return time + kOfList +
         static_cast<double>(call.inputs().size()) * (is_fresh ? kOfFreshInList : kInList);
}

}  // namespace plimsoll::simulated
