// A simulated GPU with two tiers, dedicated memory (the card's) and shared memory (the host's), for
// tests of the elastic allocator.
#pragma once

#include <cstdint>
#include <optional>

#include "check.h"
#include "elastic_gpu.h"
#include "plimsoll/allocator/elastic/books/placement.h"

namespace plimsoll {

// While an object of this class lives, the thread that made it allocates in the given region, and
// takes memory of the given tier first.
class Placed {
 public:
  explicit Placed(RegionId region, Tier prefer = Tier::dedicated) {
    ThisThread::set_placement(Placement{region, prefer});
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  ~Placed() { ThisThread::set_placement(std::nullopt); }
};

struct TieredGpu : ElasticGpu {
  TieredGpu(Bytes dedicated, Bytes shared, SpillPolicy policy = SpillPolicy::strict)
      : ElasticGpu(dedicated, "", {}, shared) {
    allocator.set_spill_policy(policy);
  }

  Block* malloc_in(RegionId region, Bytes size, StreamId stream = 0) {
    const Placed placed(region);
    return allocator.malloc(size, stream);
  }
  Block* malloc_shared(Bytes size, StreamId stream = 0) {
    const Placed placed(kNoRegion, Tier::shared);
    return allocator.malloc(size, stream);
  }

  // Writes the tag to the whole block.
  void fill(const Block* block, std::uint64_t tag) {
    driver.write_tag(block->address, block->size, tag);
  }
  [[nodiscard]] bool holds(const Block* block, std::uint64_t tag) {
    for (Bytes at = 0; at < block->size; at += kGranule) {
      if (driver.tag_at(block->address + at) != tag) return false;
    }
    return driver.tag_at(block->address + block->size - 1) == tag;
  }

  // Checks that the driver holds no memory. Call it after the program has freed everything.
  void check_nothing_is_left() {
    allocator.empty_cache();
    allocator.check_invariants();
    pool.empty_cache();
    CHECK_EQUAL(reserved(), Bytes{0});
    CHECK_EQUAL(driver.dedicated_used(), Bytes{0});
    CHECK_EQUAL(driver.shared_used(), Bytes{0});
    CHECK_EQUAL(driver.handles(), std::size_t{0});
    CHECK_EQUAL(driver.mappings(), std::size_t{0});
    CHECK_EQUAL(driver.events(), std::size_t{0});
  }
};

}  // namespace plimsoll
