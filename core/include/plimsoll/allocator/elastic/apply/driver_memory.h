// Takes addresses from the driver, and memory in pieces (piece.h), within the limits of both tiers:
// the card's own memory (dedicated) and host memory (shared).
//
// Callers check a tier's limit before they make a piece in it. `map_instead` replaces the memory
// under a live block: it unmaps the old memory and maps new memory. If the driver then refuses to
// map the new memory, and also to map the old memory again, the piece is lost. Its addresses have
// no memory until `map_lost` maps the old memory. The allocator's `mutex_` guards everything here.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/elastic/books/ledger.h"
#include "plimsoll/allocator/returned_handles.h"

namespace plimsoll {

// Maps the handle and gives the device access to it. If that fails, nothing stays mapped.
[[nodiscard]] Status map_with_access(Driver& driver, const AddressRange& range, Handle handle);

class DriverMemory {
 public:
  DriverMemory(Driver& driver, const Ledger& ledger) : driver_(driver), ledger_(ledger) {}

  // `set_limit` sets the most dedicated bytes that may be reserved, and `set_shared_limit` the most
  // shared bytes. Without a value, the memory of the card or of the host is the only limit.
  void set_limit(std::optional<Bytes> limit) { limit_ = limit; }
  void set_shared_limit(std::optional<Bytes> limit) { shared_limit_ = limit; }
  [[nodiscard]] std::optional<Bytes> shared_limit() const { return shared_limit_; }
  // `dedicated_room` returns how many more dedicated bytes the driver and the limit allow, and
  // `shared_room` how many more shared bytes.
  [[nodiscard]] Bytes dedicated_room() const;
  [[nodiscard]] Bytes shared_room() const;
  [[nodiscard]] bool limit_allows(Bytes dedicated) const {
    return !limit_ || ledger_.dedicated_reserved() + dedicated <= *limit_;
  }
  [[nodiscard]] SharedMemoryReport shared_report() const;

  // Reserves a new range of at least `size` bytes of addresses. Returns nothing if no addresses are
  // left, or if `size` exceeds the memory of these tiers. Throws DriverError.
  [[nodiscard]] std::optional<AddressRange> reserve_addresses(Tiers tiers, Bytes size);
  // Reserves the addresses at which a program's plan places requests. The range has exactly this
  // size, which must be a multiple of the granule. Returns nothing if no addresses are left, or if
  // `size` exceeds the card's memory. Throws DriverError.
  [[nodiscard]] std::optional<AddressRange> reserve_area(Bytes size);
  // Makes a piece in the given tier. If the driver would spill dedicated memory into shared memory,
  // makes no piece and returns out_of_memory.
  [[nodiscard]] Status create(Bytes size, Tier tier, std::unique_ptr<Piece>& piece);
  // Unmaps adjacent pieces that fill the range: all or none.
  [[nodiscard]] Status unmap(const AddressRange& range);
  // Asks the driver again to release the handles that it refused to release before.
  void offer_refused() { returned_.offer(); }

  // Maps the memory of `by` at the piece's address, in place of the piece's own memory. If that
  // fails, maps the piece's memory again. If the driver refuses even that, the piece is lost, and
  // `map_lost` tries again.
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
