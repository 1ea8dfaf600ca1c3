// Completes the frees of blocks that other streams used. An event on each of these streams shows
// when the block may be reused. Once all these events are complete, the allocator takes the block
// back.
//
// Inside a capture no event may be recorded or queried. A free inside a capture is therefore
// deferred until no capture runs. Then the free waits only for the uses outside captures. It need
// not wait for uses inside a capture, because the captured graph runs those in the right order.
//
// A block stays active while its `stream_uses` are not empty. This class only reads them; the
// allocator clears them when it takes the block back. A function throws DriverError if a driver
// call fails; unfinished frees then keep waiting. An allocator with several threads makes all calls
// under one lock.
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
  // When the wait for a block is over, this class calls `finish(block)`, in which the allocator
  // takes the block back.
  WaitingFrees(Driver& driver, std::function<void(Block*)> finish)
      : driver_(driver), finish_(std::move(finish)) {}

  // Starts to free a block. Call it only while no capture runs. Records an event on each stream in
  // the block's `stream_uses`. If the driver fails, keeps no event and throws DriverError.
  void wait(Block* block) { wait(block, block->stream_uses); }
  // Starts to free a block during a capture.
  void defer(Block* block) { deferred_.push_back(block); }

  // Notes that `stream` uses the block inside a capture.
  static void use_in_capture(Block* block, StreamId stream) {
    auto& uses = block->capture_uses;
    if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  }

  // Finishes the frees whose events are complete. Do not call it inside a capture.
  void process_events();
  // Waits for the events of the blocks that `is_meant` selects, and finishes their frees.
  void synchronize_events(const std::function<bool(const Block*)>& is_meant);
  [[nodiscard]] bool is_empty() const { return pending_.empty() && deferred_.empty(); }

 private:
  struct Free {
    Block* block = nullptr;
    std::size_t events = 0;  // events that are not complete
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
  std::vector<StreamId> to_query_;  // a member so that its capacity is reused
};

}  // namespace plimsoll
