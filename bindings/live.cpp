#include "plimsoll/engine/live_engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "conversions.h"
#include "module.h"
#include "plimsoll/allocator/by_address.h"
#include "plimsoll/driver/cuda.h"
#include "plimsoll/driver/locked.h"
#include "plimsoll/simulated/driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

// Tensors and the objects that hold them may die after everything else in Python does, and threads
// outlive the interpreter; each still calls the engine. So no engine is ever destroyed.
LiveEngine* forever(std::unique_ptr<LiveEngine> engine) { return engine.release(); }

LiveEngine* make_cuda(const std::string& allocator, const std::string& conf,
                      const std::string& version, int device, bool account) {
  auto driver = std::make_unique<CudaDriver>(device);
  CudaDriver& cuda = *driver;
  return forever(std::make_unique<LiveEngine>(
      std::move(driver), "cuda", [&cuda](int other) { return cuda.enable_peer(other); },
      LiveEngine::Options{allocator, conf, TorchVersion::parse(version), device, account}));
}

LiveEngine* make_simulated(nb::handle driver, const std::string& allocator, const std::string& conf,
                           const std::string& version, int device, bool account) {
  auto engine = std::make_unique<LiveEngine>(
      std::make_unique<LockedDriver>(nb::cast<SimulatedDriver&>(driver)), "simulated",
      [](int) { return Status::not_supported; },
      LiveEngine::Options{allocator, conf, TorchVersion::parse(version), device, account});
  driver.inc_ref();  // as long as the engine: for good
  return forever(std::move(engine));
}

Address allocate(LiveEngine& engine, Bytes size, StreamId stream) {
  if (size == 0) throw std::invalid_argument("a block has at least one byte");
  return engine.allocate(size, stream);
}

nb::dict account_dict(LiveEngine& engine) {
  LiveEngine::Account account;
  {
    const nb::gil_scoped_release released;  // it waits for the shadow
    account = engine.account();
  }
  nb::dict result;
  result["driver"] = engine.driver_name();
  result["peak_allocated_bytes"] = account.peak_allocated;
  result["peak_reserved_bytes"] = account.peak_reserved;
  result["peak_shared_reserved_bytes"] = account.peak_shared_reserved;
  result["card_peak_bytes"] = account.card_peak;
  result["card_total_bytes"] = account.card_total;
  result["num_device_alloc"] = account.num_device_alloc;
  result["num_device_free"] = account.num_device_free;
  result["num_alloc_retries"] = account.num_alloc_retries;
  result["num_ooms"] = account.num_ooms;
  const std::optional<ShadowResult>& torch = account.torch;
  const auto of_torch = [&](const char* name, auto value) {
    result[name] = torch ? nb::cast(value(*torch)) : nb::none();
  };
  of_torch("torch_events", [](const ShadowResult& shadow) { return shadow.events; });
  of_torch("torch_peak_reserved_bytes",
           [](const ShadowResult& shadow) { return shadow.peak_reserved; });
  of_torch("torch_num_alloc_retries",
           [](const ShadowResult& shadow) { return shadow.num_alloc_retries; });
  of_torch("torch_num_ooms", [](const ShadowResult& shadow) { return shadow.num_ooms; });
  of_torch("torch_first_failure", [](const ShadowResult& shadow) -> std::optional<std::string> {
    if (!shadow.first_failure) return std::nullopt;
    return OutOfMemory(*shadow.first_failure).what();
  });
  of_torch("torch_stopped", [](const ShadowResult& shadow) -> std::optional<std::string> {
    if (shadow.stopped.empty()) return std::nullopt;
    return shadow.stopped;
  });
  return result;
}

}  // namespace

void bind_live(nb::module_& module) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::exception<HostOutOfMemory>(module, "HostOutOfMemory", PyExc_RuntimeError);
  nb::exception<BackupError>(module, "BackupError", PyExc_RuntimeError);
  nb::class_<LiveEngine, TieredEngine>(module, "LiveEngine",
                                       "See plimsoll/live_api.h; none is ever destroyed.")
      .def_static("cuda", &make_cuda, "allocator"_a, "conf"_a, "version"_a, "device"_a, "account"_a,
                  nb::rv_policy::reference)
      .def_static("simulated", &make_simulated, "driver"_a, "allocator"_a, "conf"_a, "version"_a,
                  "device"_a, "account"_a, nb::rv_policy::reference,
                  nb::sig("def simulated(driver: SimulatedDriver, allocator: str, conf: str, "
                          "version: str, device: int, account: bool) -> LiveEngine"))
      .def_prop_ro("handle",
                   [](LiveEngine& engine) { return reinterpret_cast<std::uintptr_t>(&engine); })
      .def_prop_ro("fell_back", &LiveEngine::fell_back)
      .def(
          "allocate", &allocate, "size"_a, "stream"_a, Released(),
          "The address of a block for work on that stream; raises OutOfMemory with PyTorch's text.")
      .def(
          "free",
          [](LiveEngine& engine, Address address) {
            if (!engine.allocator().free(address)) throw UnknownAddress(address);
          },
          "address"_a, Released(),
          "Work that is queued on the block's stream, and on those recorded, may still use it.")
      .def(
          "record_stream",
          [](LiveEngine& engine, Address address, StreamId stream) {
            if (!engine.allocator().record_stream(address, stream)) throw UnknownAddress(address);
          },
          "address"_a, "stream"_a, Released(),
          "Another stream than its own uses the block: what is queued there by the time of its "
          "`free`.")
      .def(
          "empty_host_cache", [](LiveEngine& engine) { engine.host_pool().empty_cache(); },
          Released(), "Of page-locked memory, which all engines share.")
      .def("account", &account_dict, nb::sig("def account(self) -> dict[str, int | str | None]"),
           "What the run came to; `torch_` says what PyTorch's own allocator would have.");
  module.def(
      "set_placement",
      [](std::optional<RegionId> region, bool shared) {
        std::optional<Placement> placement;
        if (region) placement = Placement{*region, shared ? Tier::shared : Tier::dedicated};
        ThisThread::set_placement(placement);
      },
      "region"_a.none(), "shared"_a = false,
      "Where this thread's requests go from now on: to a region, or none (0), preferring shared "
      "memory or not; None ends it.");
}

}  // namespace plimsoll::python
