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
  Engine(std::unique_ptr<Allocator> made, NativeAllocator* as_native, SimulatedDriver& on,
         TorchVersion of)
      : allocator(std::move(made)),
        native(as_native),
        driver(on),
        by_address(*allocator),
        version(of) {}

  static std::unique_ptr<Engine> make_native(SimulatedDriver& driver, const std::string& conf,
                                             const std::string& version, int device) {
    const TorchVersion parsed = TorchVersion::parse(version);
    auto made = std::make_unique<NativeAllocator>(driver, AllocatorConfig::parse(conf, parsed),
                                                  parsed, device);
    NativeAllocator* const as_native = made.get();
    return std::make_unique<Engine>(std::move(made), as_native, driver, parsed);
  }
  static std::unique_ptr<Engine> make_elastic(SimulatedDriver& driver, const std::string& conf,
                                              const std::string& version, int device) {
    const TorchVersion parsed = TorchVersion::parse(version);
    return std::make_unique<Engine>(
        std::make_unique<ElasticAllocator>(driver, AllocatorConfig::parse(conf, parsed), parsed,
                                           device),
        nullptr, driver, parsed);
  }
  static std::unique_ptr<Engine> make_uncached(SimulatedDriver& driver, const std::string& version,
                                               int device) {
    return std::make_unique<Engine>(std::make_unique<UncachedAllocator>(driver, device), nullptr,
                                    driver, TorchVersion::parse(version));
  }

  std::unique_ptr<Allocator> allocator;
  NativeAllocator* native;
  SimulatedDriver& driver;
  ByAddress by_address;
  TorchVersion version;
};

}  // namespace plimsoll::python
