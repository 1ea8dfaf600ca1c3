// Counts the physical memory of one GPU: its dedicated memory and its part of the machine's shared
// memory.
//
// The driver model decides what a device allocation does when dedicated memory is full. With
// `linux`, the allocation fails. With `wddm`, the Windows model, shared memory holds the rest of
// the allocation, and the allocation fails only if shared memory has no room for it.
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

// The tiers of an allocation or a handle: dedicated memory for its first bytes, shared memory for
// the rest.
struct Physical {
  Bytes size = 0;
  Bytes dedicated = 0;
  Bytes shared = 0;

  // Returns the part that starts at `begin` and ends at `end`, or earlier where the tier changes.
  // The tags of this allocation start at `offset` in `content`.
  [[nodiscard]] MemoryPart part(Content& content, Address offset, Bytes begin, Bytes end) const;
};

class PhysicalMemory {
 public:
  // Takes a `host` that outlives this object.
  PhysicalMemory(SimulatedHost& host, Bytes dedicated_capacity, DriverModel model)
      : host_(host), dedicated_{dedicated_capacity, dedicated_capacity}, model_(model) {}

  [[nodiscard]] std::optional<Physical> take(Bytes size, Tier tier);
  void give_back(const Physical& physical);

  // Shares the card with other processes from now on. `card` outlives this object.
  void share(SharedCard& card) { card_ = &card; }

  [[nodiscard]] DriverModel model() const { return model_; }
  // Returns the card's memory. Memory that other processes hold does not count as free.
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
  Bytes shared_used_ = 0;  // the part of the host's shared memory that this GPU uses
};

}  // namespace plimsoll
