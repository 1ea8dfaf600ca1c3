// The blocks of a replayed program, by their recorded addresses: those that it holds, and those
// whose free waits for another stream.
//
// A recording says when such a free was done, not for what it waited. So the block is made to wait
// for a stream of its own, made up, which has work until the recording says that the free is done.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/base/address_map.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// When a free that waited for another stream is done: when it was in the recording, at once, or
// only when the allocator waits for it. The last two bound what another timing could have given.
enum class Completion : std::uint8_t { recorded, at_once, late };

class RecordedBlocks {
 public:
  // What these refer to outlives the blocks.
  RecordedBlocks(Allocator& allocator, SimulatedDriver& driver, TierMeter& tiers,
                 Completion completion)
      : allocator_(allocator), driver_(driver), tiers_(tiers), completion_(completion) {}

  [[nodiscard]] bool contains(Address address) const { return live_.find(address) != nullptr; }
  // The program has the block now, under its recorded address.
  void keep(Address address, Block* block) {
    live_.insert(address, block);
    tiers_.lent(block->address, block->size);
  }

  // `event`, by its number, frees or completes the free; each throws ReplayError if there is
  // nothing to free or to complete.
  void free_now(Address address, std::uint64_t event) { allocator_.free(take(address, event)); }
  // Frees a block that another stream still uses. `free_later` and `wait` are called while no
  // requests go to a private pool: the uses inside a capture are forgotten with its end.
  void free_later(Address address, std::uint64_t event) {
    had_pending_frees_ = true;
    completion_ == Completion::at_once ? free_now(address, event) : wait(address, event);
  }
  // Likewise, of a free that waits at the start already.
  void wait(Address address, std::uint64_t event);
  void complete(Address address, std::uint64_t event);
  [[nodiscard]] bool is_waiting(Address address) const { return waiting_.contains(address); }
  // Whether `free_later` was called.
  [[nodiscard]] bool had_pending_frees() const { return had_pending_frees_; }

 private:
  Block* take(Address address, std::uint64_t event);

  // Real stream handles are pointers; made-up ones lie above all of them.
  static constexpr StreamId kFirstMadeUpStream = StreamId{1} << 63;

  Allocator& allocator_;
  SimulatedDriver& driver_;
  TierMeter& tiers_;
  Completion completion_;
  AddressMap<Block*> live_;
  std::unordered_map<Address, StreamId> waiting_;  // a made-up stream each
  std::vector<StreamId> idle_streams_;
  StreamId next_stream_ = kFirstMadeUpStream;
  bool had_pending_frees_ = false;
};

}  // namespace plimsoll
