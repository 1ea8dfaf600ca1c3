// What PyTorch asks of CUDA besides kernels: hooks, device guard, random generators.
#include "hooks.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "memory.h"
#include "plimsoll/torch_version.h"
#include "runtime.h"
#include "timing/timing.h"

namespace plimsoll::simulated {
namespace {

using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr long kCudnnVersion = 91900;

c10::StreamId stream_id(const Stream& stream) { return stream.id(); }
std::uint64_t queue(const Stream& stream) { return static_cast<std::uint64_t>(stream_id(stream)); }
plimsoll_device* gpu(DeviceIndex index) { return runtime().device(index).gpu; }

// Whether work is done, asked again and again. Each question takes time, so that a program which
// polls gets on; one in vain makes the next take a little longer, so that a wait of any length ends
// after some hundred questions, and at most a sixteenth too late.
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

// An event lives on the device it was recorded on.
struct RecordedEvent {
  DeviceIndex device = 0;
  std::uint64_t number = 0;
  double time_ns = 0;
  Polling polling;
};

// Of a stream; it lives as long as the process.
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
    } catch (...) {  // NOLINT: this call may not fail
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
    runtime().gpus->synchronize_stream(gpu(stream.device_index()), queue(stream));
  }
  void synchronizeDevice(DeviceIndex index) const override {
    const DeviceIndex on = index < 0 ? runtime().current_device() : index;
    runtime().refuse_after_failure();
    runtime().refuse_while_capturing(on);
    runtime().gpus->synchronize_device(gpu(on));
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const Stream& stream) const override {
    if (pointer.get() == nullptr) return;
    runtime().engines->record_stream(runtime().device(stream.device_index()).engine,
                                     reinterpret_cast<std::uint64_t>(pointer.get()), queue(stream));
  }
};

// Seed and offset of a Philox generator. Values are drawn by a generator of the host that these
// two set.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(DeviceIndex index)
      : GeneratorImpl(c10::Device(DeviceType::CUDA, index),
                      c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
    is_chosen_ = true;
  }
  // A GPU would have another each time.
  void forget_choice() { is_chosen_ = false; }
  [[nodiscard]] bool is_chosen() const { return is_chosen_; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    forget_choice();
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size");
    const auto* const bytes = static_cast<const std::uint8_t*>(state.data());
    const std::uint64_t before = seed_;
    std::memcpy(&seed_, bytes, sizeof seed_);
    std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
    is_chosen_ = is_chosen_ || seed_ != before;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({kStateBytes}, at::kByte);
    auto* const bytes = state.mutable_data_ptr<std::uint8_t>();
    std::memcpy(bytes, &seed_, sizeof seed_);
    std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    const auto* const other = static_cast<const Generator*>(state.get());
    seed_ = other->seed_;
    offset_ = other->offset_;
    is_chosen_ = other->is_chosen_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }

 private:
  static constexpr std::int64_t kStateBytes = sizeof(std::uint64_t) + sizeof(std::int64_t);
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    copy->is_chosen_ = is_chosen_;
    return copy;
  }
  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
  bool is_chosen_ = true;
};

const at::Generator& default_generator(DeviceIndex index) {
  static auto* const generators = new std::vector<at::Generator>;
  const auto count = runtime().devices.size();
  while (generators->size() < count) {
    const auto index_of = static_cast<DeviceIndex>(generators->size());
    generators->push_back(at::make_generator<Generator>(index_of));
    generators->back().get<Generator>()->forget_choice();
  }
  return (*generators)[static_cast<std::size_t>(index < 0 ? runtime().current_device() : index)];
}

bool next_generator_is_default = false;

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !runtime().devices.empty(); }
  bool hasCUDA() const override { return !runtime().devices.empty(); }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuSOLVER() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool hasMAGMA() const override { return false; }
  bool hasPrimaryContext(DeviceIndex index) const override {
    return runtime().device(index).is_used;
  }
  DeviceIndex current_device() const override { return runtime().current_device(); }
  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(runtime().devices.size());
  }
  int getNumGPUs() const override { return static_cast<int>(runtime().devices.size()); }
  DeviceIndex getCurrentDevice() const override { return runtime().current_device(); }
  void setCurrentDevice(DeviceIndex index) const override { runtime().set_device(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = runtime().current_device();
    runtime().set_device(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return {DeviceType::CUDA, runtime().current_device()};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    if (next_generator_is_default) return default_generator(index);
    return at::make_generator<Generator>(index < 0 ? runtime().current_device() : index);
  }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const { return true; }
  long versionCuDNN() const override { return kCudnnVersion; }
  long versionRuntimeCuDNN() const { return kCudnnVersion; }
  long versionCuDNNFrontend() const { return 11500; }
  long versionCUDART() const override { return 13000; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  std::string showConfig() const override { return "  - simulated CUDA device\n"; }
  void deviceSynchronize(DeviceIndex index) const override {
    runtime().refuse_after_failure();
    runtime().gpus->synchronize_device(gpu(index));
  }
};

// Preferred to those of a CUDA build.
const at::RegistererCUDAHooksRegistry registered(
    "CUDAHooks", c10::REGISTRY_PREFERRED, at::CUDAHooksRegistry(),
    at::RegistererCUDAHooksRegistry::DefaultCreator<Hooks>);

}  // namespace

void install_guard() {
  static const auto* const guard = new Guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(DeviceType::CUDA)].store(guard);
  c10::SetAllocator(DeviceType::CUDA, device_allocator(), 255);
}

bool has_chosen_seed(const at::Generator& generator) {
  return generator.get<Generator>()->is_chosen();
}

void make_next_generator_default(bool value) { next_generator_is_default = value; }

}  // namespace plimsoll::simulated
