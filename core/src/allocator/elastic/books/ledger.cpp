#include "plimsoll/allocator/elastic/books/ledger.h"

namespace plimsoll {

void Ledger::add(Piece& piece) {
  piece.number = ++added_;
  Arena& arena = piece.space->arena();
  const bool is_small = piece.space->small();
  if (piece.tier == Tier::shared) {
    shared_reserved_ += piece.size;
    statistics_.shared_reserved_bytes.increase(piece.size);
  }
  reserved_ += piece.size;
  arena.reserved += piece.size;
  arena.pool->reserved += piece.size;
  statistics_.reserved_bytes.increase(is_small, piece.size);
  statistics_.segment.increase(is_small, 1);
  if (!arena.pool->is_default() && version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[arena.pool->id].increase(is_small, piece.size);
  }
}

void Ledger::remove(const Piece& piece) {
  Arena& arena = piece.space->arena();
  const bool is_small = piece.space->small();
  if (piece.tier == Tier::shared) leave_shared(piece);
  reserved_ -= piece.size;
  arena.reserved -= piece.size;
  arena.pool->reserved -= piece.size;
  statistics_.reserved_bytes.decrease(is_small, piece.size);
  statistics_.segment.decrease(is_small, 1);
  if (!arena.pool->is_default() && version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[arena.pool->id].decrease(is_small, piece.size);
  }
}

void Ledger::leave_shared(const Piece& piece) {
  shared_reserved_ -= piece.size;
  statistics_.shared_reserved_bytes.decrease(piece.size);
}

void Ledger::note(Action action, const Arena& arena, const AddressRange& range, Tier tier) {
  log_.note(action, range.address, range.size, arena.stream, arena.pool->id, 0,
            tier == Tier::shared ? range.size : 0);
}

void Ledger::note(Action action, const Piece& piece) {
  note(action, piece.space->arena(), {piece.address, piece.size}, piece.tier);
}

void Ledger::note_in_run(Action action, const Piece& piece) {
  const Arena* const arena = &piece.space->arena();
  if (run_.arena == arena && run_.action == action && run_.range.end() == piece.address &&
      run_.tier == piece.tier) {
    run_.range.size += piece.size;
    return;
  }
  note_run();
  run_ = {action, arena, {piece.address, piece.size}, piece.tier};
}

void Ledger::note_run() {
  if (run_.arena != nullptr) note(run_.action, *run_.arena, run_.range, run_.tier);
  run_.arena = nullptr;
}

}  // namespace plimsoll
