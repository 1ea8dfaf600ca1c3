// What an engine does about its two tiers besides what its allocator does. A live engine and a
// simulated one answer alike, so all that is built on a TieredEngine works on a GPU and without
// one.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/host/backup_store.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/events/segment.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll {

// Tells somebody, once, of the first request that got shared memory because dedicated was spent.
class SpillWatch {
 public:
  using Told = std::function<void(Bytes)>;

  void set(Told told) {
    if (awaits_.load()) throw std::invalid_argument("somebody is to be told of spills already");
    told_ = std::move(told);
    awaits_ = true;
  }
  // After a request of so many bytes, with no lock held. `spills`: who says whether it has spilled.
  template <typename Spills>
  void look(const Spills& spills, Bytes size) {
    if (awaits_.load(std::memory_order_relaxed) && spills.has_spilled() &&
        awaits_.exchange(false)) {
      told_(size);
    }
  }

 private:
  std::atomic<bool> awaits_{false};
  Told told_;
};

// The most dedicated memory that may be reserved: the program sets a fraction whenever it sees fit,
// and a person sets a limit beside it. The lower one counts.
struct DedicatedLimits {
  std::optional<Bytes> of_program;
  std::optional<Bytes> of_person;

  [[nodiscard]] std::optional<Bytes> lower() const {
    if (of_program && of_person) return std::min(*of_program, *of_person);
    return of_program ? of_program : of_person;
  }
};

// The elastic allocator, or an exception that says that there is none.
inline ElasticAllocator& require_elastic(ElasticAllocator* allocator) {
  if (allocator == nullptr) {
    throw std::invalid_argument("this needs the elastic allocator, and PyTorch's rules serve here");
  }
  return *allocator;
}

class TieredEngine {
 public:
  TieredEngine() = default;
  TieredEngine(const TieredEngine&) = delete;
  TieredEngine& operator=(const TieredEngine&) = delete;
  virtual ~TieredEngine() = default;

  // Whether calls may wait for a device or for other threads.
  [[nodiscard]] virtual bool waits() const = 0;
  // To be held around each of the calls that follow; of no mutex where they exclude each other.
  [[nodiscard]] virtual std::unique_lock<std::recursive_mutex> exclude_calls() = 0;

  [[nodiscard]] virtual Driver& driver() const = 0;
  [[nodiscard]] virtual TorchVersion version() const = 0;
  [[nodiscard]] virtual std::optional<Bytes> limit() const = 0;
  virtual void set_limit(std::optional<Bytes> limit) = 0;
  // Besides `set_limit`, which the program's memory fraction reaches.
  virtual void set_dedicated_limit(std::optional<Bytes> limit) = 0;
  [[nodiscard]] virtual Statistics statistics() = 0;
  [[nodiscard]] virtual std::vector<SegmentInfo> segments() const = 0;
  // Throws std::invalid_argument if PyTorch's rules serve.
  [[nodiscard]] virtual ElasticAllocator& elastic() const = 0;
  // Throws std::invalid_argument where neither the allocator nor the driver spills.
  [[nodiscard]] virtual SpillWatch& spill_watch() = 0;
  // Page-locked memory for copies, and how much of it is held.
  [[nodiscard]] virtual HostPool& host_pool() = 0;
  [[nodiscard]] virtual Bytes host_reserved_bytes() const = 0;
  // The file keeps what paused memory holds, if this GPU's memory holds anything.
  [[nodiscard]] virtual std::unique_ptr<BackupStore> store_in(int file) const = 0;
};

}  // namespace plimsoll
