#include "plimsoll/allocator/elastic/books/moves.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

void Moves::commit(MappedSpace& space, std::vector<Filling>& fillings) {
  std::vector<Filling*> moved;
  for (Filling& filling : fillings) {
    if (filling.from != nullptr) moved.push_back(&filling);
  }
  std::ranges::sort(moved, {}, [](const Filling* filling) { return filling->from->address; });
  std::vector<Return> returns;
  for (Filling* const filling : moved) {
    MappedSpace& from = *filling->from->space;
    ledger_.note_in_run(Action::segment_unmap, *filling->from);
    if (filling->is_mapped && &from == &space) {
      returns.push_back({{filling->from, filling->block}, filling->address});
      continue;
    }
    if (&from != &space) ledger_.remove(*filling->from);
    filling->made = from.remove_piece({filling->from, filling->block});
  }
  const std::uint64_t age = ++space.arena().age;
  space.come_back(returns, age);
  for (Filling& filling : fillings) {
    Piece& piece = filling.made != nullptr ? *filling.made : *filling.from;
    const bool is_new_here = piece.space != &space;
    if (is_new_here) piece.home = filling.address;
    if (filling.made == nullptr) {
      // It is back.
    } else if (filling.is_mapped) {
      space.revive(filling.address, std::move(filling.made), age);
    } else {
      space.add_piece(filling.address, std::move(filling.made), age);
    }
    if (is_new_here) ledger_.add(piece);
    ledger_.note_in_run(Action::segment_map, piece);
    if (filling.from != nullptr) {
      ++count_;
    } else {
      ++ledger_.statistics().num_device_alloc;
    }
  }
  ledger_.note_run();
}

void Moves::go_home(MappedSpace& space, const AddressRange& range) {
  if (!space.has_pieces_away()) return;
  std::vector<FreePiece> free;
  for (Block* block = space.block_at(range.address);
       block != nullptr && block->address < range.end(); block = block->next) {
    if (is_free(block)) space.add_pieces_to_go_home(block, range, free);
  }
  if (free.empty()) return;
  std::vector<Return> returns;
  for (const FreePiece& each : free) {
    returns.push_back({each, each.piece->home});
    ledger_.note_in_run(Action::segment_unmap, *each.piece);
  }
  space.come_back(returns, ++space.arena().age);
  for (const FreePiece& each : free) ledger_.note_in_run(Action::segment_map, *each.piece);
  ledger_.note_run();
  count_ += free.size();
}

}  // namespace plimsoll
