#include "plimsoll/allocator/elastic/plan/piece_sizes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "plimsoll/allocator/elastic/books/arena.h"
#include "plimsoll/allocator/elastic/plan/planned_area.h"

namespace plimsoll {
namespace {

constexpr Bytes kOwnPiecePart = 32;  // a gap of at most 1/32 of the arena's memory gets one piece
constexpr Bytes kLargestPart = 16 * kMiB;
constexpr Bytes kFewestParts = 64;  // larger gaps get pieces of 1/512 to 1/64 of all reserved bytes
constexpr Bytes kMostParts = 512;

// Returns the size of the next piece to cut from new memory. The piece begins at `piece.address`.
Bytes piece_size(const MappedSpace& space, const Filling& piece, Bytes reserved) {
  const auto [missing, gap] = std::pair(piece.missing, piece.gap);
  if (space.no_split()) return missing;
  if (space.small()) return kGranule;
  if (space.planned()) return std::max(kGranule, part_at(space, piece.address) / 2);
  const Bytes own = std::min(kLargestOwnPiece, space.arena().reserved / kOwnPiecePart);
  if (missing == gap && gap <= own) return gap;
  const Bytes all = std::max(reserved, gap);
  const auto part = [&](Bytes parts) {
    return std::clamp(std::bit_floor(all / parts), kGranule, kLargestPart);
  };
  const Bytes half = std::bit_floor(missing / 2);
  return std::min(missing, std::clamp(half, part(kMostParts), part(kFewestParts)));
}

}  // namespace

void cut_new_memory(Plan& plan, const MappedSpace& space, Bytes reserved) {
  std::vector<Filling> cut;
  for (const Filling& filling : plan.fillings) {
    if (!filling.is_new() || filling.gap == 0) {
      cut.push_back(filling);
      continue;
    }
    Filling piece = filling;
    for (Bytes left = filling.size; left > 0; left -= piece.size) {
      const Bytes size = piece_size(space, piece, reserved);
      piece.size = std::min(size, left);
      cut.push_back(piece);
      piece.address += piece.size;
      piece.missing -= piece.size;
    }
  }
  plan.fillings = std::move(cut);
}

}  // namespace plimsoll
