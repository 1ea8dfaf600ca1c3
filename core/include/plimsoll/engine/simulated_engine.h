// An allocator of either kind with its simulated driver, used by address.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/allocator/by_address.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/engine/allocators.h"
#include "plimsoll/engine/tiers.h"
#include "plimsoll/events/event_buffer.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// One lock for all engines: drivers share their host. Never held while the interpreter's is taken.
inline std::recursive_mutex& engine_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

// Held around each of Python's calls, which may meet those of the C ABI on other threads.
struct EngineGuard {
  std::lock_guard<std::recursive_mutex> guard{engine_mutex()};
};

class Engine final : public TieredEngine {
 public:
  // Throws as `make_allocator`, and ConfigError if the version or the configuration is unknown.
  Engine(const std::string& allocator_name, SimulatedDriver& on, const std::string& conf,
         const std::string& version, int device)
      : Engine(TorchVersion::parse(version), allocator_name, on, conf, device) {}

  [[nodiscard]] Address malloc(Bytes size, StreamId stream) {
    const Address address = by_address.malloc(size, stream);
    const Bytes shared = tiers.lent(*by_address.block(address));
    History& history = allocator->history();
    if (shared > 0 && history.is_recording()) history.newest().shared = shared;
    if (shared > 0 && recording != nullptr) recording->set_shared_of_newest(shared);
    return address;
  }
  // Throws UnknownAddress.
  void free(Address address) {
    tiers.returning(*by_address.block(address));
    by_address.free(address);
  }

  // With no lock held: after a request that `malloc` served.
  void tell_of_spill(Bytes size) {
    if (elastic_ != nullptr) {
      spill_watch_.look(*elastic_, size);
    } else {
      spill_watch_.look(tiers, size);
    }
  }

  // Whether a request may get shared memory: by the driver, or by policy.
  [[nodiscard]] bool may_spill() const {
    return driver_.spills() ||
           (elastic_ != nullptr && elastic_->spill_policy() == SpillPolicy::spill);
  }

  // What is asked of a live engine too.
  [[nodiscard]] bool waits() const override { return false; }
  [[nodiscard]] std::unique_lock<std::recursive_mutex> exclude_calls() override {
    return std::unique_lock(engine_mutex());
  }
  [[nodiscard]] SimulatedDriver& driver() const override { return driver_; }
  [[nodiscard]] TorchVersion version() const override { return version_; }
  [[nodiscard]] ElasticAllocator& elastic() const override { return require_elastic(elastic_); }
  [[nodiscard]] SpillWatch& spill_watch() override {
    if (!driver_.spills()) static_cast<void>(elastic());
    return spill_watch_;
  }
  [[nodiscard]] Statistics statistics() override { return tiers.statistics(); }
  [[nodiscard]] std::vector<SegmentInfo> segments() const override { return tiers.segments(); }
  [[nodiscard]] std::optional<Bytes> limit() const override { return allocator->limit(); }
  void set_limit(std::optional<Bytes> limit) override {
    limits_.of_program = limit;
    allocator->set_limit(limits_.lower());
  }
  void set_dedicated_limit(std::optional<Bytes> limit) override {
    limits_.of_person = limit;
    allocator->set_limit(limits_.lower());
  }
  [[nodiscard]] HostPool& host_pool() override { return pool; }
  [[nodiscard]] Bytes host_reserved_bytes() const override {
    return driver_.shared_used() - driver_.spilled();
  }
  [[nodiscard]] std::unique_ptr<BackupStore> store_in(int file) const override {
    return std::make_unique<EmptyFile>(file);
  }

  HostPool pool;  // outlives what the allocator pauses
  std::unique_ptr<Allocator> allocator;
  ByAddress by_address;
  TierMeter tiers;
  EventBuffer* recording = nullptr;  // is also told by the allocator

 private:
  Engine(TorchVersion of, const std::string& allocator_name, SimulatedDriver& on,
         const std::string& conf, int device)
      : Engine(make_allocator(allocator_name, on, conf, of, device), on, of) {}
  Engine(NamedAllocator made, SimulatedDriver& on, TorchVersion of)
      : pool(on),
        allocator(std::move(made.allocator)),
        by_address(*allocator),
        tiers(*allocator, on, made.elastic != nullptr),
        elastic_(made.elastic),
        driver_(on),
        version_(of),
        limits_{allocator->limit(), std::nullopt} {}

  ElasticAllocator* elastic_;
  SimulatedDriver& driver_;
  TorchVersion version_;
  DedicatedLimits limits_;
  SpillWatch spill_watch_;
};

}  // namespace plimsoll
