#include "collectives/collectives.h"

#include <torch/custom_class.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "collectives/backends.h"
#include "collectives/group.h"
#include "operation/written_out.h"

namespace plimsoll::simulated {
namespace {

// Measures the times between DDP's events by the host's clock.
class HostTimer final : public c10d::Timer {
 public:
  std::optional<std::int64_t> measureDifference(Event start, Event end) override {
    const auto began = getTimestamp(start);
    const auto ended = getTimestamp(end);
    if (!began || !ended) return std::nullopt;
    return *ended - *began;
  }
};

// plimsoll::add_backend: makes a backend and adds it to a process group; Python then gets it from
// the group. Python itself cannot construct a C++ class without a binding.
void add_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& to, c10::string_view name,
                 std::int64_t number, at::IntArrayRef machines, bool has_high_priority,
                 bool is_successor) {
  const bool is_nccl = name == "nccl";
  to->setBackend(
      is_nccl ? c10::DeviceType::CUDA : c10::DeviceType::CPU,
      is_nccl ? c10d::ProcessGroup::BackendType::NCCL : c10d::ProcessGroup::BackendType::GLOO,
      c10::make_intrusive<SimulatedGroup>(std::string(name), static_cast<std::uint64_t>(number),
                                          to->getRank(), to->getSize(), machines.vec(),
                                          has_high_priority, is_successor));
}

}  // namespace

void add_collectives(WrittenOut& kernels) {
  c10d::TimerRegistry()->Register(
      c10::DeviceType::CUDA, [](c10::Device) { return std::make_unique<HostTimer>(); },
      c10::REGISTRY_PREFERRED);
  own_operations().def(
      "add_backend(__torch__.torch.classes.c10d.ProcessGroup to, str name, int number, "
      "int[] machines, bool has_high_priority, bool is_successor) -> ()",
      TORCH_FN(add_backend));
}

}  // namespace plimsoll::simulated
