#include "plimsoll/allocator/elastic/moves.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

void Moves::commit(MappedSpace& space, std::vector<Filling>& fillings) {
  std::vector<Filling*> moved;
  for (Filling& filling : fillings) {
    if (filling.from != nullptr) moved.push_back(&filling);
  }
  std::ranges::sort(moved, {}, [](const Filling* filling) { return filling->from->address; });
  for (Filling* const filling : moved) {
    MappedSpace& from = *filling->from->space;
    filling->made = from.remove_piece({filling->from, filling->block});
    if (&from != &space) ledger_.remove(*filling->made);
    ledger_.note_in_run(Action::segment_unmap, *filling->made);
  }
  const std::uint64_t age = ++space.arena().age;
  for (Filling& filling : fillings) {
    Piece& piece = *filling.made;
    const bool is_new_here = piece.space != &space;
    if (is_new_here) piece.home = filling.address;
    if (filling.is_mapped) {
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
  const auto add = [&](Block* block) {
    if (block->address >= range.end() || block->address + block->size <= range.address) return;
    for (const FreePiece& each : space.pieces_to_go_home(block, range)) free.push_back(each);
  };
  space.free().for_each(add, kGranule);
  if (free.empty()) return;
  std::ranges::sort(free, {}, [](const FreePiece& each) { return each.piece->address; });
  const std::uint64_t age = ++space.arena().age;
  std::vector<std::unique_ptr<Piece>> pieces;
  for (const FreePiece& each : free) {
    pieces.push_back(space.remove_piece(each));
    ledger_.note_in_run(Action::segment_unmap, *pieces.back());
  }
  for (std::unique_ptr<Piece>& each : pieces) {
    Piece& piece = *each;
    space.revive(piece.home, std::move(each), age);
    ledger_.note_in_run(Action::segment_map, piece);
  }
  ledger_.note_run();
  count_ += pieces.size();
}

}  // namespace plimsoll
