// Implements at::CUDAHooksInterface, through which PyTorch asks about CUDA and its devices.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "device/generator.h"
#include "device/memory.h"
#include "device/pinned.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using c10::DeviceIndex;
using c10::DeviceType;

constexpr long kCudnnVersion = 91900;

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
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
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
    runtime().gpus->synchronize_device(runtime().device(index).gpu);
  }
};

// REGISTRY_PREFERRED: a CUDA build of PyTorch also registers hooks, but uses these.
const at::RegistererCUDAHooksRegistry registered(
    "CUDAHooks", c10::REGISTRY_PREFERRED, at::CUDAHooksRegistry(),
    at::RegistererCUDAHooksRegistry::DefaultCreator<Hooks>);

}  // namespace
}  // namespace plimsoll::simulated
