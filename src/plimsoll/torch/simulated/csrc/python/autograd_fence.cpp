// Makes a program wait until a pass of the autograd engine has ended completely.
//
// For each device, the autograd engine has a thread that runs a loop. When a pass is complete, the
// thread first wakes the caller. It releases the pass only at the end of that iteration of the loop
// (Engine::thread_main of torch/csrc/autograd/engine.cpp). Until then the pass holds the gradients
// that it returned (GraphTask::mark_as_completed_and_run_post_processing). A failed pass also holds
// the gradients that were never used (GraphTask::not_ready_). Without a wait, the program would
// already run on, and the host's load would decide when the gradients' memory is freed. So the
// program waits for the next iteration of the loop.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <type_traits>

#include "device/runtime.h"
#include "python/export.h"

namespace plimsoll::simulated {
namespace {

// The root node of an empty autograd pass. The engine runs this node before all nodes that other
// passes have queued. The node takes no sequence number, so the numbers of the program's operations
// stay the same.
class Turn final : public torch::autograd::Node {
 public:
  Turn() : Node(std::numeric_limits<std::uint64_t>::max()) {}

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

// Makes a Turn. PyTorch 2.9 holds nodes by std::shared_ptr, PyTorch 2.13 by c10::intrusive_ptr.
template <typename Pointer>
Pointer make_turn() {
  if constexpr (std::is_constructible_v<Pointer, torch::autograd::Node*>) {
    return Pointer(new Turn);
  } else {
    return Pointer::unsafe_steal_from_new(new Turn);
  }
}

// Runs the empty pass on a device's thread. The engine chooses that thread because the root's input
// is on that device. The pass uses only the caller's stream, so the engine makes no stream wait for
// another. The input has no storage, and no operation makes it. Profilers do not see the pass.
void wait_for_turn(c10::DeviceIndex index) {
  const at::DisableRecordFunctionGuard unseen;
  const at::Tensor gradient = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>(),
      c10::Device(c10::DeviceType::CUDA, index));
  const auto turn = make_turn<decltype(torch::autograd::Edge::function)>();
  turn->add_input_metadata(gradient);
  torch::autograd::Engine::get_default_engine().execute({{turn, 0}}, {gradient},
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace

// Waits for the end of a pass. Python calls it after each pass, without the interpreter's lock. If
// one of the engine's threads starts a pass inside another pass, that thread runs the inner pass
// itself, so there is nothing to wait for.
PLIMSOLL_EXPORT void plimsoll_fence_autograd() {
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  if (runtime().is_over || runtime().is_bad_fork) return;
  for (std::size_t i = 0; i < runtime().devices.size(); ++i) {
    if (!runtime().devices[i].is_used) continue;
    try {
      wait_for_turn(static_cast<c10::DeviceIndex>(i));
    } catch (const std::exception&) {  // NOLINT: compiled autograd cannot run such a pass
    }
  }
}

}  // namespace plimsoll::simulated
