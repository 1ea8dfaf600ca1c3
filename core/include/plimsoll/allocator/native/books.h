// Keeps the allocator's statistics and history of reserved, used and split memory, by PyTorch's
// rules.
//
// The allocator reports each change of the blocks to Books once. Books updates the statistics and,
// if the change is one of PyTorch's events, the history.
#pragma once

#include <cstdint>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/event_log.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll {

// A change of the statistics inactive_split and inactive_split_bytes. These count free blocks that
// are only a part of their segment, and so cannot go back to the driver as they are. Blocks of
// expandable segments are not counted.
struct SplitChange {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;

  // Counts `block` as free from now on.
  void add(const Block* block) {
    if (!counts(block)) return;
    ++blocks;
    bytes += static_cast<std::int64_t>(block->size);
  }
  // Counts `block` as no longer free.
  void remove(const Block* block) {
    if (!counts(block)) return;
    --blocks;
    bytes -= static_cast<std::int64_t>(block->size);
  }

 private:
  [[nodiscard]] static bool counts(const Block* block) {
    return block->is_split() && block->expandable == nullptr;
  }
};

class Books {
 public:
  // The objects that the arguments refer to must outlive this one.
  Books(Statistics& statistics, EventLog& log, const AllocatorConfig& config, TorchVersion version)
      : statistics_(statistics), log_(log), config_(config), version_(version) {}

  // Returns how many bytes of the driver's memory the allocator has.
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  // Returns the call stack of the current request.
  [[nodiscard]] std::uint32_t context() const { return log_.context(); }

  // Notes that a segment came from the driver, or that it goes back. The segment is a single block
  // at that time.
  void take_segment(const Block* segment);
  void release_segment(const Block* segment);
  // Notes that pages of `block`'s expandable segment got or lost memory.
  void map(const Block* block, Address address, Bytes size);
  void unmap(const Block* block, Address address, Bytes size);

  void lend(const Block* block) {
    const bool small = block->pool->small;
    log_.note(Action::alloc, block->address, block->requested, block->stream, block->pool->id());
    statistics_.allocation.increase(small, 1);
    statistics_.allocated_bytes.increase(small, block->size);
    statistics_.active.increase(small, 1);
    statistics_.active_bytes.increase(small, block->size);
    statistics_.requested_bytes.increase(small, block->requested);
    if (is_oversize(block)) statistics_.oversize_allocations.increase(1);
  }
  // Notes that the program freed the block, which stays active until its free is complete.
  void request_free(const Block* block) {
    const bool small = block->pool->small;
    statistics_.allocation.decrease(small, 1);
    statistics_.allocated_bytes.decrease(small, block->size);
    log_.note(Action::free_requested, block->address, block->requested, block->stream,
              block->pool->id(), block->context);
    if (is_oversize(block)) statistics_.oversize_allocations.decrease(1);
  }
  // Notes that the free is complete. Call it before the block is joined with neighbours.
  void complete_free(const Block* block) {
    const bool small = block->pool->small;
    log_.note(Action::free_completed, block->address, block->requested, block->stream,
              block->pool->id(), block->context);
    statistics_.active.decrease(small, 1);
    statistics_.active_bytes.decrease(small, block->size);
    statistics_.requested_bytes.decrease(small, block->requested);
  }
  void split(const Pool& pool, const SplitChange& change) {
    apply(statistics_.inactive_split, pool.small, change.blocks);
    apply(statistics_.inactive_split_bytes, pool.small, change.bytes);
  }

 private:
  [[nodiscard]] bool is_oversize(const Block* block) const {
    return block->size >= config_.max_split_size;
  }
  static void apply(PoolStat& stat, bool small, std::int64_t change) {
    if (change > 0) stat.increase(small, static_cast<std::uint64_t>(change));
    if (change < 0) stat.decrease(small, static_cast<std::uint64_t>(-change));
  }
  void add_reserved(const Pool& pool, Bytes size);
  void remove_reserved(const Pool& pool, Bytes size);

  Statistics& statistics_;
  EventLog& log_;
  const AllocatorConfig& config_;
  TorchVersion version_;
  Bytes reserved_ = 0;
};

}  // namespace plimsoll
