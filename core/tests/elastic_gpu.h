// For tests: a simulated GPU on a simulated host of its own, and an elastic allocator for this GPU.
#pragma once

#include <initializer_list>
#include <limits>
#include <string>

#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/simulated/driver.h"
#include "support.h"

namespace plimsoll {

struct ElasticGpu {
  explicit ElasticGpu(Bytes dedicated, std::string_view config = "", TorchVersion version = {},
                      Bytes shared = 0)
      : host(shared),
        driver(host, dedicated),
        allocator(driver, AllocatorConfig::parse(config, version), version) {}

  Block* malloc(Bytes size, StreamId stream = 0) { return allocator.malloc(size, stream); }
  void free(std::initializer_list<Block*> blocks) {
    for (Block* const block : blocks) allocator.free(block);
  }
  [[nodiscard]] Bytes reserved() const {
    return static_cast<Bytes>(allocator.statistics().reserved_bytes.all.current);
  }
  [[nodiscard]] std::uint64_t mapping_calls() const {
    return driver.calls(Call::create) + driver.calls(Call::map) + driver.calls(Call::unmap) +
           driver.calls(Call::set_access);
  }
  [[nodiscard]] std::uint64_t event_calls() const {
    return driver.calls(Call::record) + driver.calls(Call::query) + driver.calls(Call::synchronize);
  }

  SimulatedHost host;
  SimulatedDriver driver;
  HostPool pool{driver};
  ElasticAllocator allocator;
};

}  // namespace plimsoll
