#include "device/profiler.h"

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              std::int64_t* cpu_ns) const override {
    if (device != nullptr) *device = runtime().current_device();
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    *event = std::make_shared<char>();
  }
  float elapsed(const ProfilerVoidEventStub*, const ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> operation) const override {
    operation(runtime().current_device());
  }
  void synchronize() const override {}
};

}  // namespace

void install_profiler() {
  static auto* const stubs = new Stubs;
  torch::profiler::impl::registerCUDAMethods(stubs);
}

}  // namespace plimsoll::simulated
