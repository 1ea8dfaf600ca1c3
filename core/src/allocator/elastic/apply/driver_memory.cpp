#include "plimsoll/allocator/elastic/apply/driver_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace plimsoll {
namespace {

Bytes room_below(std::optional<Bytes> limit, Bytes reserved) {
  return limit ? *limit - std::min(*limit, reserved) : std::numeric_limits<Bytes>::max();
}

}  // namespace

Status map_with_access(Driver& driver, const AddressRange& range, Handle handle) {
  Status status = driver.map(range.address, range.size, handle);
  if (status != Status::success) return status;
  status = driver.set_access(range.address, range.size);
  if (status != Status::success) static_cast<void>(driver.unmap(range.address, range.size));
  return status;
}

Bytes DriverMemory::dedicated_room() const {
  return std::min(room_below(limit_, ledger_.dedicated_reserved()), driver_.memory_info().free);
}

Bytes DriverMemory::shared_room() const {
  return std::min(room_below(shared_limit_, ledger_.shared_reserved()), driver_.shared_info().free);
}

SharedMemoryReport DriverMemory::shared_report() const {
  const Bytes total = driver_.shared_info().total;
  return {ledger_.shared_reserved(), shared_limit_ ? std::min(*shared_limit_, total) : total,
          shared_room()};
}

std::optional<AddressRange> DriverMemory::reserve_addresses(Tiers tiers, Bytes size) {
  const Bytes least = round_up(size, kGranule) + kGranule;
  const Bytes most =
      driver_.memory_info().total + (tiers == Tiers::dedicated ? 0 : driver_.shared_info().total);
  if (size > most) return std::nullopt;
  const Bytes wanted = std::max(least, round_up(most, kGranule));
  auto range = reserve(wanted);
  return range || wanted == least ? range : reserve(least);
}

std::optional<AddressRange> DriverMemory::reserve_area(Bytes size) {
  return size > driver_.memory_info().total ? std::nullopt : reserve(size);
}

std::optional<AddressRange> DriverMemory::reserve(Bytes size) {
  AddressRange range{0, size};
  const Status status = driver_.reserve(range.size, range.address);
  if (status == Status::out_of_memory) return std::nullopt;
  if (status != Status::success) {
    throw DriverError("reserve addresses", status, driver_.last_error());
  }
  return range;
}

Status DriverMemory::create(Bytes size, Tier tier, std::unique_ptr<Piece>& piece) {
  if (tier == Tier::dedicated && driver_.spills() && driver_.memory_info().free < size) {
    return Status::out_of_memory;
  }
  Handle handle = 0;
  const Status status = driver_.create(size, tier, handle);
  if (status == Status::success) piece = std::make_unique<Piece>(size, tier, handle, returned_);
  return status;
}

Status DriverMemory::unmap(const AddressRange& range) {
  const auto first = lost_.lower_bound(range.address);
  const auto last = lost_.lower_bound(range.end());
  Bytes mapped = range.size;
  for (auto it = first; it != last; ++it) mapped -= it->second.size;
  const Status status = mapped == 0 ? Status::success : driver_.unmap(range.address, range.size);
  if (status == Status::success) lost_.erase(first, last);
  return status;
}

Status DriverMemory::map_instead(const Piece& piece, const Piece& by) {
  const AddressRange range{piece.address, piece.size};
  const Status unmapped = driver_.unmap(range.address, range.size);
  if (unmapped != Status::success) return unmapped;
  const Status status = map_with_access(driver_, range, by.handle);
  if (status == Status::success ||
      map_with_access(driver_, range, piece.handle) == Status::success) {
    return status;
  }
  lost_.emplace(range.address, Lost{piece.space, range.size});
  return Status::failed;
}

void DriverMemory::map_lost() {
  std::erase_if(lost_, [this](const auto& lost) {
    const Piece* const piece = lost.second.space->piece_at(lost.first);
    if (piece == nullptr) return false;
    return map_with_access(driver_, {piece->address, piece->size}, piece->handle) ==
           Status::success;
  });
}

}  // namespace plimsoll
