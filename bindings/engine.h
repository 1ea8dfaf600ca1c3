// An allocator of either kind with its simulated driver, used by address.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "plimsoll/allocator/by_address.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic.h"
#include "plimsoll/allocator/native.h"
#include "plimsoll/allocator/uncached.h"
#include "plimsoll/driver/simulated.h"
#include "plimsoll/replay/tier_meter.h"

namespace plimsoll::python {

// One lock for all engines: drivers share their host. Never held while the interpreter's is taken.
inline std::recursive_mutex& engine_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

// Held around each of Python's calls, which may meet those of the C ABI on other threads.
struct EngineLock {
  std::lock_guard<std::recursive_mutex> guard{engine_mutex()};
};

class Engine {
 public:
  // `as_elastic` is the allocator itself if it is one.
  Engine(std::unique_ptr<Allocator> made, ElasticAllocator* as_elastic, SimulatedDriver& on,
         TorchVersion of)
      : allocator(std::move(made)),
        elastic(as_elastic),
        driver(on),
        by_address(*allocator),
        tiers(*allocator, driver),
        version(of) {}

  static std::unique_ptr<Engine> make_native(SimulatedDriver& driver, const std::string& conf,
                                             const std::string& version, int device) {
    const TorchVersion parsed = TorchVersion::parse(version);
    return std::make_unique<Engine>(
        std::make_unique<NativeAllocator>(driver, AllocatorConfig::parse(conf, parsed), parsed,
                                          device),
        nullptr, driver, parsed);
  }
  static std::unique_ptr<Engine> make_elastic(SimulatedDriver& driver, const std::string& conf,
                                              const std::string& version, int device) {
    const TorchVersion parsed = TorchVersion::parse(version);
    auto made = std::make_unique<ElasticAllocator>(driver, AllocatorConfig::parse(conf, parsed),
                                                   parsed, device);
    ElasticAllocator* const as_elastic = made.get();
    return std::make_unique<Engine>(std::move(made), as_elastic, driver, parsed);
  }
  static std::unique_ptr<Engine> make_uncached(SimulatedDriver& driver, const std::string& version,
                                               int device) {
    return std::make_unique<Engine>(std::make_unique<UncachedAllocator>(driver, device), nullptr,
                                    driver, TorchVersion::parse(version));
  }

  [[nodiscard]] Address malloc(Bytes size, StreamId stream) {
    const Address address = by_address.malloc(size, stream);
    const Bytes shared = tiers.lent(*by_address.block(address));
    History& history = allocator->history();
    if (shared > 0 && history.is_recording()) history.newest().shared = shared;
    return address;
  }
  // Throws UnknownAddress.
  void free(Address address) {
    tiers.returning(*by_address.block(address));
    by_address.free(address);
  }

  // Whether a request may get shared memory: by the driver, or by policy.
  [[nodiscard]] bool may_spill() const {
    return driver.model() == DriverModel::wddm ||
           (elastic != nullptr && elastic->spill_policy() == SpillPolicy::spill);
  }

  std::unique_ptr<Allocator> allocator;
  ElasticAllocator* elastic;
  SimulatedDriver& driver;
  ByAddress by_address;
  TierMeter tiers;
  TorchVersion version;
};

}  // namespace plimsoll::python
