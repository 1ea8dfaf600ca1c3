// The blocks of a replayed program, by their recorded addresses: live blocks, and blocks whose free
// waits for another stream.
//
// A recording says when a waiting free was complete, but not which stream it waited for. The replay
// therefore gives the block a stream of its own with a made-up number. That stream has work until
// the recording says that the free is complete.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/base/address_map.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// Says when the replay completes a free that waits for another stream: at the same event as in the
// recording (`recorded`), as soon as the program requests the free (`at_once`), or only when the
// allocator waits for that stream (`late`). The difference between a replay with `at_once` and one
// with `late` shows how much this timing matters.
enum class Completion : std::uint8_t { recorded, at_once, late };

class RecordedBlocks {
 public:
  // All arguments taken by reference must outlive this object.
  RecordedBlocks(Allocator& allocator, SimulatedDriver& driver, TierMeter& tiers,
                 Completion completion)
      : allocator_(allocator), driver_(driver), tiers_(tiers), completion_(completion) {}

  [[nodiscard]] bool contains(Address address) const { return live_.find(address) != nullptr; }
  // Notes that the program got this block. `address` is the block's address in the recording.
  void keep(Address address, Block* block) {
    live_.insert(address, block);
    tiers_.lent(block->address, block->size);
  }

  // `free_now`, `free_later` and `wait` free the block; `complete` completes its free. `event` is
  // the number of the recorded event. The first three throw ReplayError if no block is live at
  // `address`. `complete` throws ReplayError if no free is pending there; with Completion::at_once,
  // it never throws.
  void free_now(Address address, std::uint64_t event) { allocator_.free(take(address, event)); }
  // Frees a block that another stream still uses. Call `free_later` and `wait` only while requests
  // go to the default pool. If a graph capture runs during the call, the allocator notes the other
  // stream's use of the block, but forgets it when the capture ends.
  void free_later(Address address, std::uint64_t event) {
    had_pending_frees_ = true;
    completion_ == Completion::at_once ? free_now(address, event) : wait(address, event);
  }
  // Frees the block, but keeps the free pending until `complete`. `free_later` calls this function;
  // other callers need it only for a free that was already pending when the recording began.
  void wait(Address address, std::uint64_t event);
  void complete(Address address, std::uint64_t event);
  [[nodiscard]] bool is_waiting(Address address) const { return waiting_.contains(address); }
  // Returns whether `free_later` was called.
  [[nodiscard]] bool had_pending_frees() const { return had_pending_frees_; }

 private:
  Block* take(Address address, std::uint64_t event);

  // Real stream handles are pointers. The made-up numbers are larger than every pointer.
  static constexpr StreamId kFirstMadeUpStream = StreamId{1} << 63;

  Allocator& allocator_;
  SimulatedDriver& driver_;
  TierMeter& tiers_;
  Completion completion_;
  AddressMap<Block*> live_;
  std::unordered_map<Address, StreamId> waiting_;  // the made-up stream of each block
  std::vector<StreamId> idle_streams_;
  StreamId next_stream_ = kFirstMadeUpStream;
  bool had_pending_frees_ = false;
};

}  // namespace plimsoll
