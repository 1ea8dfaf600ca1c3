#include "plimsoll/allocator/elastic/apply/applier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "plimsoll/allocator/elastic/plan/piece_sizes.h"

namespace plimsoll {

bool Applier::apply(MappedSpace& space, Plan plan) {
  const Bytes dedicated = plan.new_memory(Tier::dedicated);
  const Bytes shared = plan.new_memory(Tier::shared);
  if (dedicated > 0 && !memory_.limit_allows(dedicated)) return false;
  // A plan that needs much new dedicated memory is refused here if the card has no room for all of
  // it. Without this check, the plan would take memory away from other processes piece by piece,
  // and then fail.
  if (dedicated > kLargestOwnPiece && dedicated > memory_.dedicated_room()) return false;
  const bool may_share = dedicated + shared > 0 && space.tiers() != Tiers::dedicated;
  const Bytes shared_room = may_share ? memory_.shared_room() : 0;
  if (shared > shared_room) return false;
  if (plan.makes_memory()) cut_new_memory(plan, space, ledger_.reserved());
  NewPieces made(plan.fillings.size());
  Status status = create(space, plan.fillings, shared_room - shared, made);
  if (status == Status::success) status = clear(space, plan.cleared);
  if (status == Status::success) status = map(space, plan.fillings, made);
  if (status == Status::success) {
    commit(space, plan.fillings, std::move(made));
    return true;
  }
  const std::string reason = driver_.last_error();
  made.clear();
  if (status == Status::out_of_memory) return false;
  throw DriverError("give memory to addresses", status, reason);
}

// Creates the new pieces. The driver may refuse dedicated memory although there seemed to be room.
// Then the piece becomes shared memory, provided that the space may have shared memory and
// `shared_room` suffices.
Status Applier::create(const MappedSpace& space, std::vector<Filling>& fillings, Bytes shared_room,
                       NewPieces& made) {
  for (std::size_t i = 0; i < fillings.size(); ++i) {
    Filling& filling = fillings[i];
    if (!filling.is_new()) continue;
    Status status = memory_.create(filling.size, filling.tier, made[i]);
    const bool may_spill = space.tiers() == Tiers::both && filling.tier == Tier::dedicated;
    if (status == Status::out_of_memory && may_spill && filling.size <= shared_room) {
      filling.tier = Tier::shared;
      shared_room -= filling.size;
      status = memory_.create(filling.size, filling.tier, made[i]);
    }
    if (status != Status::success) return status;
  }
  return Status::success;
}

// Unmaps retired addresses (old addresses of pieces that have moved), adjacent ones in one call. If
// a call fails, the addresses of the earlier calls are holes: no memory is mapped there. The
// remaining addresses are still mapped.
Status Applier::clear(MappedSpace& space, std::vector<Address> retired) {
  std::ranges::sort(retired);
  for (auto next = retired.begin(); next != retired.end();) {
    const auto first = next;
    AddressRange range{*first, 0};
    for (; next != retired.end() && *next == range.end(); ++next) {
      range.size += space.retired_at(*next).size;
    }
    const Status status = memory_.unmap(range);
    if (status != Status::success) return status;
    std::for_each(first, next, [&](Address address) { space.give_way(address); });
  }
  return Status::success;
}

Status Applier::map(MappedSpace& space, const std::vector<Filling>& fillings,
                    const NewPieces& made) {
  std::vector<AddressRange> mapped;
  Status status = Status::success;
  for (std::size_t i = 0; i < fillings.size(); ++i) {
    const Filling& filling = fillings[i];
    if (filling.is_mapped) continue;
    const Piece& piece = filling.is_new() ? *made[i] : *filling.from.piece;
    status = driver_.map(filling.address, filling.size, piece.handle);
    if (status != Status::success) break;
    mapped.push_back({filling.address, filling.size});
  }
  // Each stretch of adjacent addresses gets access in one call.
  for (std::size_t first = 0; status == Status::success && first < mapped.size();) {
    Address end = mapped[first].address;
    std::size_t next = first;
    for (; next < mapped.size() && mapped[next].address == end; ++next) end = mapped[next].end();
    status = driver_.set_access(mapped[first].address, end - mapped[first].address);
    first = next;
  }
  if (status == Status::success) return status;
  for (const AddressRange& range : mapped) {
    if (driver_.unmap(range.address, range.size) != Status::success) space.retire(range);
  }
  return status;
}

// Records where the moved pieces and the new ones lie now (a piece is memory with one handle). A
// piece that moves within its space keeps its home address, so that the piece can return to it once
// its memory is free. For a piece from another space, the new address becomes its home.
void Applier::commit(MappedSpace& space, const std::vector<Filling>& fillings, NewPieces pieces) {
  std::vector<std::size_t> moved;
  for (std::size_t i = 0; i < fillings.size(); ++i) {
    if (!fillings[i].is_new()) moved.push_back(i);
  }
  std::ranges::sort(moved, {}, [&](std::size_t i) { return fillings[i].from.piece->address; });
  std::vector<Return> returns;
  for (const std::size_t i : moved) {
    const Filling& filling = fillings[i];
    MappedSpace& from = *filling.from.piece->space;
    ledger_.note_in_run(Action::segment_unmap, *filling.from.piece);
    if (filling.is_mapped && &from == &space) {
      returns.push_back({filling.from, filling.address});
      continue;
    }
    if (&from != &space) ledger_.remove(*filling.from.piece);
    if (&from.arena() != &space.arena()) space.arena().count_taken();
    pieces[i] = from.remove_piece(filling.from);
  }
  const std::uint64_t age = ++space.arena().age;
  space.return_pieces(returns, age);
  for (std::size_t i = 0; i < fillings.size(); ++i) {
    const Filling& filling = fillings[i];
    Piece& piece = pieces[i] != nullptr ? *pieces[i] : *filling.from.piece;
    const bool is_new_here = piece.space != &space;
    if (is_new_here) piece.home = filling.address;
    if (pieces[i] == nullptr) {
      // `return_pieces` has put this piece back already.
    } else if (filling.is_mapped) {
      space.return_piece(filling.address, std::move(pieces[i]), age);
    } else {
      space.add_piece(filling.address, std::move(pieces[i]), age);
    }
    if (is_new_here) ledger_.add(piece);
    ledger_.note_in_run(Action::segment_map, piece);
    if (filling.is_new()) ++ledger_.statistics().num_device_alloc;
  }
  ledger_.count_moves(moved.size());
  ledger_.note_run();
}

}  // namespace plimsoll
