// Blocks are lent to the program, and freed: every request's path.
//
// A block for which pieces were brought together borrows them. When the block is freed they return
// home before the arena's next request, unless that request is for just the same block: so a loop
// of one size moves nothing. Returning changes only the books, for the pieces are still mapped at
// home.
//
// Invariants, over the blocks of all arenas:
//   arena.live == the blocks with `allocated`; a waiting block is active and not allocated, and
//     arena.waiting counts its size;
//   block.shared == bytes of the lent block in shared memory; shared_allocated == their sum.
// The caller holds the lock of the block's arena, and where the block borrows, the allocator's
// `mutex_`.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "plimsoll/allocator/elastic/books/ledger.h"
#include "plimsoll/base/spin_lock.h"

namespace plimsoll {

class Lending {
 public:
  Lending(EventLog& log, Ledger& ledger) : log_(log), ledger_(ledger) {}

  // The program has the block, which its space gave.
  Block* lend(Block* block, Bytes requested) {
    Arena& arena = *block->arena;
    block->allocated = true;
    block->requested = requested;
    block->stream = arena.stream;
    block->context = log_.context();
    block->borrows = false;
    block->exported = false;
    if (block->space->tiers() != Tiers::dedicated) {
      block->lent = lent_.fetch_add(1, std::memory_order_relaxed) + 1;
      recount_shared(*block);
    }
    block->space->note_lent(block);
    if (block->size > AllocatorConfig::kSmallRequest && arena.is_planned()) {
      arena.note_planned(*block);
    }
    arena.live.insert(block->address, block);
    arena.shard.allocate(block->size <= AllocatorConfig::kSmallRequest, block->size, requested);
    log_.note(Action::alloc, block->address, requested, block->stream, arena.pool->id, 0,
              block->shared);
    return block;
  }
  // The program freed the block, which no other stream uses, and which `live` knows no more.
  void free(Block* block) {
    Arena& arena = *block->arena;
    arena.free_resting();  // while the block is no neighbour to merge with
    const Bytes shared = block->shared;
    block->allocated = false;
    if (shared != 0) count_shared(*block, 0);
    arena.shard.free(block->size <= AllocatorConfig::kSmallRequest, block->size, block->requested);
    note(Action::free_requested, *block, shared);
    note(Action::free_completed, *block, shared);
    set_free(block);
  }
  // The program freed the block, but other streams still use it; later they use it no more.
  void request_free(Block* block);
  void complete_free(Block* block);

  // The borrowing block that the program freed last, if the request is for just that one; else its
  // pieces return home, and the result is null. Takes the arena's lock.
  [[nodiscard]] Block* take_borrowed(MappedSpace& space, Bytes size, Bytes requested);

  // How much of a lent block is in shared memory, after its pieces changed.
  void recount_shared(Block& block) {
    count_shared(block, block.space->shared_bytes(block.address, block.size));
  }
  [[nodiscard]] Stat shared_allocated() const {
    const std::lock_guard guard(shared_lock_);
    return shared_allocated_;
  }
  void reset_peak() {
    const std::lock_guard guard(shared_lock_);
    shared_allocated_.reset_peak();
  }
  void reset_accumulated() {
    const std::lock_guard guard(shared_lock_);
    shared_allocated_.reset_accumulated();
  }

 private:
  void note(Action action, const Block& block, Bytes shared) {
    log_.note(action, block.address, block.requested, block.stream, block.arena->pool->id,
              block.context, shared);
  }
  void set_free(Block* block) {
    if (block->borrows) {
      free_borrowed(block);
    } else {
      block->arena->rest(block);
    }
  }
  void free_borrowed(Block* block);
  // The free pieces among these bytes return home, as far as nothing else was mapped there. So a
  // program that repeats itself finds free memory as it found it before. The arena is locked.
  void return_home(MappedSpace& space, const AddressRange& range);
  void count_shared(Block& block, Bytes shared);

  EventLog& log_;
  Ledger& ledger_;
  std::atomic<std::uint64_t> lent_{0};  // blocks that may be in shared memory, so far
  mutable SpinLock shared_lock_;        // of the next; threads of all arenas change it
  Stat shared_allocated_;
};

}  // namespace plimsoll
