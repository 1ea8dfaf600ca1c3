// A pass of the autograd engine is over, whole, before the program goes on.
//
// The thread of a device wakes the caller first, and lets go of the pass afterwards, as it ends the
// turn of its loop (Engine::thread_main of torch/csrc/autograd/engine.cpp). The pass holds the
// gradients that it returned (GraphTask::mark_as_completed_and_run_post_processing) and, if it
// failed, those that nobody took (GraphTask::not_ready_). Their memory would be freed some events
// later, more or fewer with the load of the host. So the program waits for the thread's next turn.
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

// The root of a pass that does nothing. It goes before what other passes have queued, and takes no
// sequence number from the program's operations.
class Turn final : public torch::autograd::Node {
 public:
  Turn() : Node(std::numeric_limits<std::uint64_t>::max()) {}

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

// Nodes are held by std::shared_ptr in PyTorch 2.9, and by c10::intrusive_ptr in 2.13.
template <typename Pointer>
Pointer make_turn() {
  if constexpr (std::is_constructible_v<Pointer, torch::autograd::Node*>) {
    return Pointer(new Turn);
  } else {
    return Pointer::unsafe_steal_from_new(new Turn);
  }
}

// The root's input says on which thread it runs, and in which stream: the caller's, so that no
// stream waits for another. It has no storage, no operation makes it, and profilers see nothing.
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

// Called after each pass, without the interpreter's lock. A thread of the engine that begins a pass
// inside another runs it itself, so that the pass is over at once.
PLIMSOLL_EXPORT void plimsoll_fence_autograd() {
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  if (runtime().is_over || runtime().is_bad_fork) return;
  for (std::size_t i = 0; i < runtime().devices.size(); ++i) {
    if (!runtime().devices[i].is_used) continue;
    try {
      wait_for_turn(static_cast<c10::DeviceIndex>(i));
    } catch (const std::exception&) {  // NOLINT: compiled autograd takes no such pass
    }
  }
}

}  // namespace plimsoll::simulated
