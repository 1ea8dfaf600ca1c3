#include "plimsoll/allocator/elastic/books/lending.h"

namespace plimsoll {

void Lending::request_free(Block* block) {
  Arena& arena = *block->arena;
  const Bytes shared = block->shared;
  block->allocated = false;
  if (shared != 0) count_shared(*block, 0);
  arena.live.erase(block->address);
  arena.waiting.add(block->size);
  arena.shard.request_free(block->size <= AllocatorConfig::kSmallRequest, block->size);
  note(Action::free_requested, *block, shared);
}

void Lending::complete_free(Block* block) {
  Arena& arena = *block->arena;
  arena.free_resting();
  block->stream_uses.clear();
  arena.waiting.remove(block->size);
  arena.shard.complete_free(block->size <= AllocatorConfig::kSmallRequest, block->size,
                            block->requested);
  note(Action::free_completed, *block, block->space->shared_bytes(block->address, block->size));
  set_free(block);
}

void Lending::free_borrowed(Block* block) {
  Arena& arena = *block->arena;
  MappedSpace& space = *block->space;
  const Arena::Borrowed borrowed{&space, {block->address, block->size}};
  space.free(block, ++arena.age);
  if (!arena.pool->may_give()) return;
  if (arena.borrowed) return_home(*arena.borrowed->space, arena.borrowed->range);
  arena.borrowed = borrowed;
}

Block* Lending::take_borrowed(MappedSpace& space, Bytes size, Bytes requested) {
  Arena& arena = space.arena();
  const Arena::Guard guard(arena);
  if (!arena.borrowed) return nullptr;
  const auto [lender, range] = *arena.borrowed;
  arena.borrowed.reset();
  // If the arena follows a plan, the request's planned place may be elsewhere than `range`.
  const bool is_planned = !space.small() && arena.is_planned();
  if (lender == &space && range.size == size && !is_planned) {
    if (Block* const block = space.take_at(range.address, range.size)) {
      lend(block, requested);
      block->borrows = true;
      return block;
    }
  }
  if (arena.pool->may_give()) return_home(*lender, range);
  return nullptr;
}

void Lending::return_home(MappedSpace& space, const AddressRange& range) {
  if (!space.has_pieces_away()) return;
  std::vector<FreePiece> free;
  for (Block* block = space.block_at(range.address);
       block != nullptr && block->address < range.end(); block = block->next) {
    if (is_free(block)) space.add_pieces_away(block, range, free);
  }
  if (free.empty()) return;
  std::vector<Return> returns;
  for (const FreePiece& each : free) {
    returns.push_back({each, each.piece->home});
    ledger_.note_in_run(Action::segment_unmap, *each.piece);
  }
  space.return_pieces(returns, ++space.arena().age);
  for (const FreePiece& each : free) ledger_.note_in_run(Action::segment_map, *each.piece);
  ledger_.note_run();
  ledger_.count_moves(free.size());
}

void Lending::count_shared(Block& block, Bytes shared) {
  const std::lock_guard guard(shared_lock_);
  if (shared > block.shared) shared_allocated_.increase(shared - block.shared);
  if (shared < block.shared) shared_allocated_.decrease(block.shared - shared);
  block.shared = shared;
}

}  // namespace plimsoll
