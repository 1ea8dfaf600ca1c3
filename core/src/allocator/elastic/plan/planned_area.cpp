#include "plimsoll/allocator/elastic/plan/planned_area.h"

#include <algorithm>
#include <bit>

namespace plimsoll {
namespace {

// An area has at least this many parts, unless its parts are granules. A part with a live block in
// it cannot move. So the smaller the parts are, the less memory is stuck when a program deviates
// from its plan. But mapping a part takes an H100's driver about 0.04 ms.
constexpr Bytes kPartsOfArea = 512;
constexpr Bytes kLargestAreaPart = 32 * kMiB;

Address border_of(const AddressRange& area) {
  return area.address + round_down(area.size - StreamPlan::top_of(area.size), kGranule);
}

}  // namespace

Bytes part_at(const MappedSpace& planned, Address address) {
  const AddressRange area = planned.reservations().front();
  if (address >= border_of(area)) return kGranule;
  return std::clamp(std::bit_floor(area.size / kPartsOfArea), kGranule, kLargestAreaPart);
}

Plan plan_parts(const MappedSpace& planned, const AddressRange& range) {
  const AddressRange area = planned.reservations().front();
  const Address border = border_of(area);
  Plan plan;
  if (range.address >= border) return plan;
  const Bytes part = part_at(planned, range.address);
  const auto begin_of = [&](Address address) {
    return area.address + round_down(address - area.address, part);
  };
  const auto end_of = [&](Address address) { return std::min(border, begin_of(address) + part); };
  const Address end = end_of(std::min(range.end(), border) - 1);
  for (Address at = begin_of(range.address); at < end;) {
    const Block* const block = planned.block_at(at);
    const Address next = std::min(end_of(at), block->address + block->size);
    if (is_hole(block)) plan.fillings.push_back({at, next - at});
    at = next;
  }
  return plan;
}

void add_area_top(const Arena& arena, std::uint64_t age, std::vector<FreePiece>& found) {
  if (arena.planned_gives || arena.planned.reservations().empty()) return;
  const Address border = border_of(arena.planned.reservations().front());
  for (const FreePiece& free : arena.planned.free_pieces(age)) {
    if (free.piece->address >= border) found.push_back(free);
  }
}

}  // namespace plimsoll
