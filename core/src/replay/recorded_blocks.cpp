#include "plimsoll/replay/recorded_blocks.h"

#include <string>

#include "plimsoll/replay/events.h"

namespace plimsoll {

Block* RecordedBlocks::take(Address address, std::uint64_t event) {
  Block* const* const block = live_.find(address);
  if (block == nullptr) {
    throw ReplayError("event " + std::to_string(event) + " frees " + format_address(address) +
                      ", which is not allocated");
  }
  Block* const found = *block;
  live_.erase(address);
  tiers_.returning(found->address, found->size);
  return found;
}

void RecordedBlocks::wait(Address address, std::uint64_t event) {
  Block* const block = take(address, event);
  StreamId stream = next_stream_;
  if (completion_ == Completion::late) {
    // All blocks wait for one made-up stream, so the allocator need not query an event for each
    // block.
  } else if (idle_streams_.empty()) {
    ++next_stream_;
  } else {
    stream = idle_streams_.back();
    idle_streams_.pop_back();
  }
  driver_.hold(stream);
  allocator_.record_stream(block, stream);
  allocator_.free(block);
  waiting_.emplace(address, stream);
}

void RecordedBlocks::complete(Address address, std::uint64_t event) {
  const auto waiting = waiting_.find(address);
  if (waiting == waiting_.end()) {
    if (completion_ == Completion::at_once) return;
    throw ReplayError("event " + std::to_string(event) + " completes a free of " +
                      format_address(address) + " that was never requested");
  }
  if (completion_ == Completion::recorded) {
    driver_.finish(waiting->second);
    idle_streams_.push_back(waiting->second);
  }
  waiting_.erase(waiting);
}

}  // namespace plimsoll
