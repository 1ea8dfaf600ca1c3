// Frees of blocks that other streams used. An event on each of these streams tells when the block
// may serve again; then the allocator is told, once, and takes it back.
//
// Inside a capture no event may be recorded or queried: what is freed there is deferred until no
// capture is left, and does not wait for uses inside a capture, which the capture has ordered.
//
// A block's `stream_uses` are read and never changed here: they stay, and keep the block active,
// until the allocator takes it back. A driver call that fails throws DriverError, and what was not
// finished goes on waiting. An allocator with several threads makes all calls under one lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "plimsoll/allocator/block.h"
#include "plimsoll/base/object_pool.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

class WaitingFrees {
 public:
  // `finish` takes back a block that waits no longer.
  WaitingFrees(Driver& driver, std::function<void(Block*)> finish)
      : driver_(driver), finish_(std::move(finish)) {}

  // A free outside captures: records an event on every stream that used the block, or, if the
  // driver fails, on none.
  void wait(Block* block) { wait(block, block->stream_uses); }
  // A free inside a capture.
  void defer(Block* block) { deferred_.push_back(block); }

  // The block is used on `stream` inside a capture.
  static void use_in_capture(Block* block, StreamId stream) {
    auto& uses = block->capture_uses;
    if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  }

  // Finishes the frees whose events have passed; not to be called inside a capture.
  void process_events();
  // Waits for the events of the blocks that are meant, and finishes their frees.
  void synchronize_events(const std::function<bool(const Block*)>& is_meant);
  [[nodiscard]] bool is_empty() const { return pending_.empty() && deferred_.empty(); }

 private:
  struct Free {
    Block* block = nullptr;
    std::size_t events = 0;  // that have not passed
  };

  void wait(Block* block, const std::vector<StreamId>& streams);
  void wait_for_deferred();
  void process_events(StreamId stream);
  void pass(Event event, Free* free);

  Driver& driver_;
  std::function<void(Block*)> finish_;
  ObjectPool<Free> frees_;
  std::map<StreamId, std::deque<std::pair<Event, Free*>>> pending_;
  std::deque<Block*> deferred_;
  std::vector<StreamId> to_query_;  // kept for its room
};

}  // namespace plimsoll
