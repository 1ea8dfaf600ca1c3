#include "device/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "device/host_times.h"
#include "device/memory.h"
#include "device/runtime.h"
#include "plimsoll/compiled_against.h"

namespace plimsoll::simulated {
namespace {

using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

std::uint64_t queue(const Stream& stream) { return static_cast<std::uint64_t>(stream.id()); }
plimsoll_device* gpu(DeviceIndex index) { return runtime().device(index).gpu; }

// Polls whether work is done. Each poll advances the simulated clock; otherwise a program that
// polls in a loop would never end. The first poll advances the clock by 2 us, and each further poll
// by 1/16 more than the poll before. The loop therefore ends after about a hundred polls. Its last
// poll advances the clock past the end of the work, by at most about 1/16 of the loop's time.
class Polling {
 public:
  template <typename Question>
  bool ask(DeviceIndex device, Question is_done) {
    runtime().gpus->advance(gpu(device), next_ns_);
    const bool done = is_done();
    next_ns_ = done ? kQueryNs : next_ns_ * kGrowth;
    return done;
  }

 private:
  static constexpr double kQueryNs = 2000;
  static constexpr double kGrowth = 1.0 + 1.0 / 16;

  std::atomic<double> next_ns_{kQueryNs};
};

// An event, and the device on which it was recorded.
struct RecordedEvent {
  DeviceIndex device = 0;
  std::uint64_t number = 0;
  double time_ns = 0;
  Polling polling;
};

// Returns the polling state of a stream. The object lives as long as the process.
Polling& polling_of(const Stream& stream) {
  static std::mutex mutex;
  static std::map<std::pair<DeviceIndex, c10::StreamId>, Polling> pollings;
  const std::scoped_lock lock(mutex);
  return pollings[{stream.device_index(), stream.id()}];
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  c10::Device getDevice() const override { return {DeviceType::CUDA, runtime().current_device()}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.index() != before.index()) setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) runtime().set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      setDevice(device);
    } catch (...) {  // NOLINT: this call must not fail
    }
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(runtime().devices.size());
  }
#if PLIMSOLL_TORCH_AT_LEAST(10)
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
#endif

  Stream getStream(c10::Device device) const override {
    return Stream(Stream::UNSAFE, device, runtime().current_stream(device.index()));
  }
  Stream getDefaultStream(c10::Device device) const override {
    return Stream(Stream::DEFAULT, device);
  }
  Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return getNewStream(device, high ? -1 : 0);
  }
  Stream getNewStream(c10::Device device, int priority) const override {
    runtime().refuse_after_failure();
    const DeviceIndex index = device.has_index() ? device.index() : runtime().current_device();
    return Stream(Stream::UNSAFE, c10::Device(DeviceType::CUDA, index),
                  runtime().new_stream(index, priority));
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    runtime().set_stream(stream.device_index(), stream.id());
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const {
    return reinterpret_cast<void*>(queue(stream));
  }

  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new RecordedEvent;
    auto& recorded = *static_cast<RecordedEvent*>(*event);
    runtime().refuse_after_failure();
    const plimsoll_device_api& gpus = *runtime().gpus;
    if (recorded.number != 0) gpus.destroy_event(gpu(recorded.device), recorded.number);
    recorded.device = stream.device_index();
    runtime().use(recorded.device);
    runtime().pass_host_time(recorded.device, kEventHostNs);
    gpus.record_event(gpu(recorded.device), queue(stream), &recorded.number);
    recorded.time_ns = gpus.done_at(gpu(recorded.device), queue(stream));
  }
  void block(void* event, const Stream& stream) const override {
    const auto* const recorded = static_cast<RecordedEvent*>(event);
    if (recorded == nullptr || recorded->number == 0) return;
    runtime().pass_host_time(stream.device_index(), kEventHostNs);
    if (recorded->device == stream.device_index()) {
      runtime().gpus->wait_event(gpu(recorded->device), queue(stream), recorded->number);
    } else {
      runtime().wait_until(stream.device_index(), stream.id(), recorded->time_ns);
    }
  }
  bool queryEvent(void* event) const override {
    auto* const recorded = static_cast<RecordedEvent*>(event);
    if (recorded == nullptr) return true;
    return recorded->polling.ask(recorded->device, [recorded] {
      return recorded->number == 0 ||
             runtime().gpus->query_event(gpu(recorded->device), recorded->number) ==
                 PLIMSOLL_SUCCESS;
    });
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    const auto* const recorded = static_cast<RecordedEvent*>(event);
    if (recorded != nullptr && recorded->number != 0 && !runtime().is_over) {
      runtime().gpus->destroy_event(gpu(recorded->device), recorded->number);
    }
    delete recorded;
  }
  void synchronizeEvent(void* event) const override {
    runtime().refuse_after_failure();
    const auto* const recorded = static_cast<RecordedEvent*>(event);
    if (recorded != nullptr && recorded->number != 0) {
      runtime().gpus->synchronize_event(gpu(recorded->device), recorded->number);
    }
  }
  double elapsedTime(void* first, void* second, DeviceIndex) const override {
    return (static_cast<RecordedEvent*>(second)->time_ns -
            static_cast<RecordedEvent*>(first)->time_ns) *
           1e-6;
  }

  bool queryStream(const Stream& stream) const override {
    runtime().use(stream.device_index());
    const plimsoll_device_api& gpus = *runtime().gpus;
    return polling_of(stream).ask(stream.device_index(), [&] {
      std::uint64_t event = 0;
      plimsoll_device* const on = gpu(stream.device_index());
      gpus.record_event(on, queue(stream), &event);
      const bool done = gpus.query_event(on, event) == PLIMSOLL_SUCCESS;
      gpus.destroy_event(on, event);
      return done;
    });
  }
  void synchronizeStream(const Stream& stream) const override {
    runtime().refuse_after_failure();
    runtime().refuse_while_capturing(stream.device_index());
    runtime().use(stream.device_index());
    runtime().gpus->synchronize_stream(gpu(stream.device_index()), queue(stream));
  }
  void synchronizeDevice(DeviceIndex index) const override {
    const DeviceIndex on = index < 0 ? runtime().current_device() : index;
    runtime().refuse_after_failure();
    runtime().refuse_while_capturing(on);
    runtime().use(on);
    runtime().gpus->synchronize_device(gpu(on));
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const Stream& stream) const override {
    if (pointer.get() == nullptr) return;
    runtime().engines->record_stream(runtime().device(stream.device_index()).engine,
                                     reinterpret_cast<std::uint64_t>(pointer.get()), queue(stream));
  }
};

}  // namespace

void install_guard() {
  static const auto* const guard = new Guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(DeviceType::CUDA)].store(guard);
  c10::SetAllocator(DeviceType::CUDA, device_allocator(), 255);
}

}  // namespace plimsoll::simulated
