#include "plimsoll/allocator/elastic/apply/tier_mover.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace plimsoll {

Bytes TierMover::rebalance(Bytes most) {
  memory_.map_lost();
  std::vector<Move> moves = moves_within(std::min(most, memory_.dedicated_room()));
  if (moves.empty()) return 0;
  work_.wait_for_device();
  static_cast<void>(clear_scratch());
  release_.clear_all_retired();  // a piece that moves must not have a second mapping
  const Status status = move(moves);
  Bytes moved = 0;
  std::set<Arena*> changed;
  for (const Move& move : moves) {
    if (!move.is_done) continue;
    Piece& piece = *move.piece;
    Arena& arena = piece.space->arena();
    const Arena::Guard guard(arena);
    ledger_.note(Action::segment_unmap, piece);
    ledger_.leave_shared(piece);
    piece.exchange_memory(*move.by);
    piece.space->set_home(piece);
    ledger_.note(Action::segment_map, piece);
    moved += piece.size;
    changed.insert(&arena);
  }
  for (Arena* const arena : changed) {
    const Arena::Guard guard(*arena);
    arena->live.for_each([&](Address, Block* block) {
      if (block->shared != 0) lending_.recount_shared(*block);
    });
  }
  if (status != Status::success && status != Status::out_of_memory) {
    throw DriverError("bring memory back to the card", status, driver_.last_error());
  }
  return moved;
}

// Returns the pieces of shared memory to move, at most `room` bytes in total. Pieces of the blocks
// that have lived longest come first. Pieces that were exported to other processes stay, because
// those processes would keep the old memory.
std::vector<TierMover::Move> TierMover::moves_within(Bytes room) {
  std::vector<Move> moves;
  // The pieces that must not be chosen any more: those that must stay, and those that were chosen
  // already. Two blocks may lie in one piece, so the loops may reach the same piece twice.
  std::set<const Piece*> taken;
  if (room < kGranule) return moves;
  for (Arena& arena : arenas_.all()) {
    if (arena.pool->is_paused) continue;
    const Arena::Guard guard(arena);
    arena.spilled.for_each_block([&](const Block* block) {
      if (!block->allocated || block->shared == 0) return;
      arena.spilled.for_each_piece(block->address, block->size, [&](Piece& piece) {
        if (piece.tier != Tier::shared) return;
        if (block->exported || memory_.is_lost(piece)) {
          taken.insert(&piece);
        } else {
          moves.push_back({block->lent, &piece});
        }
      });
    });
  }
  std::ranges::sort(moves, {},
                    [](const Move& move) { return std::tuple(move.lent, move.piece->address); });
  std::erase_if(moves, [&](const Move& move) {
    if (move.piece->size > room || !taken.insert(move.piece).second) return true;
    room -= move.piece->size;
    return false;
  });
  return moves;
}

// Copies pieces into new dedicated memory, and maps that memory at the pieces' addresses. The
// caller has waited until no queued work uses the pieces. The copies run without any arena's lock,
// so that other threads can free blocks meanwhile. The caller records the moves afterwards.
Status TierMover::move(std::vector<Move>& moves) {
  Status status = prepare_scratch();
  if (status != Status::success) return status;
  const Status filled = fill(moves);  // pieces for which there is no memory stay where they are
  Bytes size = 0;
  for (const Move& move : moves) size += move.by != nullptr ? move.piece->size : 0;
  if (size == 0) return filled;
  status = driver_.set_access(scratch_.address, size);
  Address to = scratch_.address;
  for (const Move& move : moves) {
    if (move.by == nullptr || status != Status::success) break;
    status = driver_.copy(to, move.piece->address, move.piece->size, 0);
    to += move.piece->size;
  }
  const Status copied = driver_.synchronize();
  if (status == Status::success) status = copied;
  const Status cleared = clear_scratch();
  if (status == Status::success) status = cleared;
  for (Move& move : moves) {
    if (move.by == nullptr || status != Status::success) break;
    status = memory_.map_instead(*move.piece, *move.by);
    move.is_done = status == Status::success;
  }
  return status == Status::success ? filled : status;
}

// Creates the dedicated memory of each move, and maps it in the scratch range, right behind the
// memory of the previous move. Stops at the first call that fails.
Status TierMover::fill(std::vector<Move>& moves) {
  Address address = scratch_.address;
  for (Move& move : moves) {
    std::unique_ptr<Piece> made;
    Status status = memory_.create(move.piece->size, Tier::dedicated, made);
    if (status == Status::success) status = driver_.map(address, made->size, made->handle);
    if (status != Status::success) return status;
    is_scratch_mapped_ = true;
    address += made->size;
    move.by = std::move(made);
  }
  return Status::success;
}

Status TierMover::clear_scratch() {
  if (!is_scratch_mapped_) return Status::success;
  const Status status = driver_.unmap(scratch_.address, scratch_.size);
  if (status == Status::success) is_scratch_mapped_ = false;
  return status;
}

Status TierMover::prepare_scratch() {
  if (scratch_.size > 0) return clear_scratch();
  AddressRange range{0, round_up(driver_.memory_info().total, kGranule)};
  const Status status = driver_.reserve(range.size, range.address);
  if (status == Status::success) scratch_ = range;
  return status;
}

}  // namespace plimsoll
