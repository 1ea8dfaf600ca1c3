// Lends blocks to the program and frees them. Every request comes through here.
//
// A block borrows the pieces that were brought together for it. After the block is freed, the
// pieces return home (where they were mapped first) before the arena's next request. But if that
// request has exactly the block's size, it gets the block, and the pieces stay. So a loop that
// always requests the same size moves no pieces. A return changes only the records, because the
// pieces are still mapped at home.
//
// Invariants, over the blocks of all arenas:
// - arena.live == the blocks with `allocated`.
// - A waiting block is active and not allocated, and arena.waiting counts its size.
// - block.shared == bytes of the lent block in shared memory; shared_allocated == sum of
//   block.shared.
//
// The caller holds the lock of the block's arena and, for a block that borrows, the allocator's
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

  // Marks a block as used by the program, and counts it. The block was taken from its space before.
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
  // Frees a block that no other stream uses and that `live` no longer contains.
  void free(Block* block) {
    Arena& arena = *block->arena;
    // Frees the resting block while `block` still counts as used. Otherwise, if the two blocks are
    // neighbours, the space could merge them.
    arena.free_resting();
    const Bytes shared = block->shared;
    block->allocated = false;
    if (shared != 0) count_shared(*block, 0);
    arena.shard.free(block->size <= AllocatorConfig::kSmallRequest, block->size, block->requested);
    note(Action::free_requested, *block, shared);
    note(Action::free_completed, *block, shared);
    set_free(block);
  }
  // `request_free` notes that the program freed a block that other streams still use.
  // `complete_free` frees the block once no other stream uses it.
  void request_free(Block* block);
  void complete_free(Block* block);

  // Looks at the block that was freed last among those that borrowed pieces. If this block lies in
  // `space` and has exactly `size`, lends it again. Otherwise sends its pieces home, and returns
  // null. Locks the arena itself.
  [[nodiscard]] Block* take_borrowed(MappedSpace& space, Bytes size, Bytes requested);

  // Counts again how much of a lent block lies in shared memory. Called when its pieces have
  // changed.
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
  // Moves each free piece in the range back to its home, if the piece is still mapped there. So a
  // program that repeats its steps finds free memory at the same addresses as before. The caller
  // has locked the arena.
  void return_home(MappedSpace& space, const AddressRange& range);
  void count_shared(Block& block, Bytes shared);

  EventLog& log_;
  Ledger& ledger_;
  std::atomic<std::uint64_t> lent_{0};  // blocks lent so far that may be in shared memory
  mutable SpinLock shared_lock_;        // guards shared_allocated_; all arenas change it
  Stat shared_allocated_;
};

}  // namespace plimsoll
