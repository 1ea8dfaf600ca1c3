// The placement of a thread's requests: their region, and the tier (the card's own memory or host
// memory) that is tried first. The program names the regions.
//
// A region has memory of its own, as a private pool does, so that the region can be taken off the
// card as a whole. Free memory moves in and out of a region.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

using RegionId = std::uint32_t;  // 0 means no region
inline constexpr RegionId kNoRegion = 0;

struct Placement {
  RegionId region = kNoRegion;
  // The tier to take memory from first. When this tier is full, memory comes from the other tier.
  Tier prefer = Tier::dedicated;
};

// The policy for requests when dedicated memory is full.
enum class SpillPolicy : std::uint8_t {
  strict,  // the request fails
  spill,   // the request gets host memory (Tier::shared)
};

class ThisThread {
 public:
  // Sets the placement of this thread's requests. Without a value they go to the default pool and
  // dedicated memory.
  static void set_placement(std::optional<Placement> placement);
  [[nodiscard]] static Placement placement();
  // Returns whether this thread has a placement. While no thread has one, reads only a counter,
  // because the hot path calls this function.
  [[nodiscard]] static bool has_placement() {
    return placed_threads_.load(std::memory_order_relaxed) != 0 && is_placed();
  }

 private:
  [[nodiscard]] static bool is_placed();

  static std::atomic<int> placed_threads_;
};

}  // namespace plimsoll
