#include "plimsoll/device_api.h"

#include <nanobind/nanobind.h>

#include "module.h"
#include "plimsoll/engine/engine.h"
#include "plimsoll/simulated/driver.h"
#include "plimsoll/status.h"

namespace plimsoll::python {
namespace {

SimulatedDriver& gpu_of(plimsoll_device* handle) {
  return *reinterpret_cast<SimulatedDriver*>(handle);
}

int status_of(Status status) {
  switch (status) {
    case Status::success: return PLIMSOLL_SUCCESS;
    case Status::out_of_memory: return PLIMSOLL_OUT_OF_MEMORY;
    case Status::not_ready: return PLIMSOLL_NOT_READY;
    default: return PLIMSOLL_FAILED;
  }
}

// Calls a member function of the GPU's driver, and returns the status as a code of the C interface.
template <auto function, typename... Arguments>
int called(plimsoll_device* handle, Arguments... arguments) {
  const auto exclusive = exclude_simulated_gpus();
  return status_of((gpu_of(handle).*function)(arguments...));
}

void launch(plimsoll_device* handle, std::uint64_t stream, double duration_ns) {
  const auto exclusive = exclude_simulated_gpus();
  gpu_of(handle).launch(stream, duration_ns);
}

void advance(plimsoll_device* handle, double host_ns) {
  const auto exclusive = exclude_simulated_gpus();
  gpu_of(handle).host().advance(host_ns);
}

double done_at(plimsoll_device* handle, std::uint64_t stream) {
  const auto exclusive = exclude_simulated_gpus();
  return gpu_of(handle).done_at_ns(stream);
}

int record_event(plimsoll_device* handle, std::uint64_t stream, std::uint64_t* event) {
  const auto exclusive = exclude_simulated_gpus();
  Event recorded{};
  const Status status = gpu_of(handle).record(stream, recorded);
  *event = recorded;
  return status_of(status);
}

int synchronize_event(plimsoll_device* handle, std::uint64_t event) {
  const auto exclusive = exclude_simulated_gpus();
  return status_of(gpu_of(handle).synchronize(event));
}

void synchronize_device(plimsoll_device* handle) {
  const auto exclusive = exclude_simulated_gpus();
  gpu_of(handle).synchronize_device();
}

int allocate_host(plimsoll_device* handle, std::uint64_t size, std::uint64_t* address) {
  const auto exclusive = exclude_simulated_gpus();
  return status_of(gpu_of(handle).allocate_host(size, *address));
}

std::uint64_t shared_bytes(plimsoll_device* handle, std::uint64_t address, std::uint64_t size) {
  const auto exclusive = exclude_simulated_gpus();
  SimulatedDriver& gpu = gpu_of(handle);
  return gpu.spilled() == 0 ? 0 : gpu.shared_in(address, size);
}

constexpr plimsoll_device_api kDeviceApi{
    PLIMSOLL_DEVICE_API_VERSION,
    launch,
    advance,
    done_at,
    record_event,
    called<&SimulatedDriver::query>,
    synchronize_event,
    called<&SimulatedDriver::destroy>,
    called<&SimulatedDriver::wait>,
    called<&SimulatedDriver::synchronize_stream>,
    synchronize_device,
    allocate_host,
    called<&SimulatedDriver::deallocate_host>,
    shared_bytes,
};

}  // namespace

void bind_device_api(nanobind::module_& module) {
  module.def(
      "device_api", [] { return reinterpret_cast<std::uintptr_t>(&kDeviceApi); },
      "The address of the table of C functions in plimsoll/device_api.h.");
}

}  // namespace plimsoll::python
