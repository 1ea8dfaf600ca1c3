// The physical memory of one GPU, counted: its dedicated memory, and what of the machine's shared
// memory it has.
//
// Driver models: `linux` fails a device allocation when dedicated memory is full; `wddm`, the
// Windows model, fills dedicated memory and goes on into shared memory, and fails when both are
// full.
#pragma once

#include <cstdint>
#include <optional>

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/content.h"
#include "plimsoll/simulated/host.h"
#include "plimsoll/simulated/shared_card.h"

namespace plimsoll {

enum class DriverModel : std::uint8_t { linux, wddm };

// Where an allocation or a handle lives: in dedicated memory as far as that went, behind it in
// shared memory.
struct Physical {
  Bytes size = 0;
  Bytes dedicated = 0;
  Bytes shared = 0;

  // The bytes from `begin` on, of one tier, up to `end` at most. They are at `offset` in `content`.
  [[nodiscard]] MemoryPart part(Content& content, Address offset, Bytes begin, Bytes end) const;
};

class PhysicalMemory {
 public:
  // `host` outlives this.
  PhysicalMemory(SimulatedHost& host, Bytes dedicated_capacity, DriverModel model)
      : host_(host), dedicated_{dedicated_capacity, dedicated_capacity}, model_(model) {}

  [[nodiscard]] std::optional<Physical> take(Bytes size, Tier tier);
  void give_back(const Physical& physical);

  // From now on other processes use the same card. `card` outlives this.
  void share(SharedCard& card) { card_ = &card; }

  [[nodiscard]] DriverModel model() const { return model_; }
  // Memory that other processes have is not free.
  [[nodiscard]] MemoryInfo dedicated_info() const;
  [[nodiscard]] MemoryInfo shared_info() const { return host_.shared_info(); }
  [[nodiscard]] Bytes dedicated_used() const { return dedicated_.total - dedicated_.free; }
  [[nodiscard]] Bytes most_dedicated_used() const { return most_dedicated_used_; }
  [[nodiscard]] Bytes shared_used() const { return shared_used_; }

 private:
  SimulatedHost& host_;
  MemoryInfo dedicated_;
  DriverModel model_;
  SharedCard* card_ = nullptr;
  Bytes most_dedicated_used_ = 0;
  Bytes shared_used_ = 0;  // by this GPU
};

}  // namespace plimsoll
