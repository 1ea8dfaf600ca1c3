// The driver's memory as pieces, and its addresses, within the limits of both tiers.
//
// No piece is made that brings a tier above its limit. A piece is lost if a failing driver unmapped
// it under a live block and did not map it again; its addresses stay untouched until `map_lost`.
// Everything here is guarded by the allocator's `mutex_`.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/elastic/books/ledger.h"
#include "plimsoll/allocator/returned_handles.h"

namespace plimsoll {

// Maps the handle and gives access to it, or leaves all as it was.
[[nodiscard]] Status map_with_access(Driver& driver, const AddressRange& range, Handle handle);

class DriverMemory {
 public:
  DriverMemory(Driver& driver, const Ledger& ledger) : driver_(driver), ledger_(ledger) {}

  // The most that may be reserved; without a limit, what the card, or the host, has.
  void set_limit(std::optional<Bytes> limit) { limit_ = limit; }
  void set_shared_limit(std::optional<Bytes> limit) { shared_limit_ = limit; }
  [[nodiscard]] std::optional<Bytes> shared_limit() const { return shared_limit_; }
  // How much more may be, and can be, reserved.
  [[nodiscard]] Bytes dedicated_room() const;
  [[nodiscard]] Bytes shared_room() const;
  [[nodiscard]] bool limit_allows(Bytes dedicated) const {
    return !limit_ || ledger_.dedicated_reserved() + dedicated <= *limit_;
  }
  [[nodiscard]] SharedMemoryReport shared_report() const;

  // More addresses for at least `size` bytes; nothing if there are none left, or the size is more
  // than all memory of these tiers. Throws DriverError.
  [[nodiscard]] std::optional<AddressRange> reserve_addresses(Tiers tiers, Bytes size);
  // Addresses of just this size, in granules, for the area of a plan; nothing if there are none
  // left, or the card has less memory. Throws DriverError.
  [[nodiscard]] std::optional<AddressRange> reserve_area(Bytes size);
  // A piece of the tier that is asked for, whatever the driver would do by itself.
  [[nodiscard]] Status create(Bytes size, Tier tier, std::unique_ptr<Piece>& piece);
  // Unmaps whole pieces that lie side by side, all or none.
  [[nodiscard]] Status unmap(const AddressRange& range);
  // Releases to the driver what it refused before.
  void offer_refused() { returned_.offer(); }

  // Maps the memory of `by` where the piece is mapped; if that fails, all is as it was. A driver
  // that does not even map again what it had mapped is asked again by `map_lost`.
  [[nodiscard]] Status map_instead(const Piece& piece, const Piece& by);
  void map_lost();
  [[nodiscard]] bool is_lost(const Piece& piece) const { return lost_.contains(piece.address); }

 private:
  [[nodiscard]] std::optional<AddressRange> reserve(Bytes size);

  struct Lost {
    const MappedSpace* space;
    Bytes size;
  };

  Driver& driver_;
  const Ledger& ledger_;
  std::optional<Bytes> limit_;
  std::optional<Bytes> shared_limit_;
  ReturnedHandles returned_{driver_};
  std::map<Address, Lost> lost_;
};

}  // namespace plimsoll
