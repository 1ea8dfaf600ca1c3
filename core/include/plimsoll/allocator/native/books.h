// The allocator's books: what is reserved, lent and split, counted and noted by PyTorch's rules.
//
// Each change of the blocks is told here once, and comes to the statistics and, where it is one of
// PyTorch's events, to the history.
#pragma once

#include <cstdint>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/event_log.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/events/statistics.h"

namespace plimsoll {

// How the free blocks of split segments change; they cannot go back to the driver as they are.
// Those of expandable segments are not counted.
struct SplitChange {
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;

  // `block` is free now.
  void add(const Block* block) {
    if (!counts(block)) return;
    ++blocks;
    bytes += static_cast<std::int64_t>(block->size);
  }
  // It was until now.
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
  // What these refer to outlives the books.
  Books(Statistics& statistics, EventLog& log, const AllocatorConfig& config, TorchVersion version)
      : statistics_(statistics), log_(log), config_(config), version_(version) {}

  // All memory of the driver's.
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  // The call stack of the request at hand.
  [[nodiscard]] std::uint32_t context() const { return log_.context(); }

  // A segment came from the driver, or goes back; it is one block.
  void take_segment(const Block* segment);
  void release_segment(const Block* segment);
  // Pages of the expandable segment in which `block` lies got memory, or have lost it.
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
  // The program gave the block back; until its free is complete it stays active.
  void request_free(const Block* block) {
    const bool small = block->pool->small;
    statistics_.allocation.decrease(small, 1);
    statistics_.allocated_bytes.decrease(small, block->size);
    log_.note(Action::free_requested, block->address, block->requested, block->stream,
              block->pool->id(), block->context);
    if (is_oversize(block)) statistics_.oversize_allocations.decrease(1);
  }
  // Before the block is joined with others.
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
