// Carries out plans: the driver first, then the books, so that neither stops halfway.
//
//   new memory is made -> retired addresses are unmapped -> pieces are mapped -> the books change
//
// If the limit or the driver refuses, the books know of no piece that moved, and new memory is
// released; addresses that were unmapped until then are a hole. Everything here is guarded by the
// allocator's `mutex_`, and by the locks of the arenas involved, which the caller holds.
#pragma once

#include <memory>
#include <vector>

#include "plimsoll/allocator/elastic/apply/driver_memory.h"
#include "plimsoll/allocator/elastic/plan/plan.h"

namespace plimsoll {

class Applier {
 public:
  Applier(Driver& driver, DriverMemory& memory, Ledger& ledger)
      : driver_(driver), memory_(memory), ledger_(ledger) {}

  // The memory of the plan is free in the space from now on. Returns false if the limit or the
  // driver refuses. Throws DriverError.
  [[nodiscard]] bool apply(MappedSpace& space, Plan plan);

 private:
  using NewPieces = std::vector<std::unique_ptr<Piece>>;  // one for each filling, or null

  [[nodiscard]] Status create(const MappedSpace& space, std::vector<Filling>& fillings,
                              Bytes shared_room, NewPieces& made);
  [[nodiscard]] Status clear(MappedSpace& space, std::vector<Address> retired);
  // All of it, but for what is mapped already. If that fails nothing stays mapped, or what the
  // driver does not unmap is retired.
  [[nodiscard]] Status map(MappedSpace& space, const std::vector<Filling>& fillings,
                           const NewPieces& made);
  void commit(MappedSpace& space, const std::vector<Filling>& fillings, NewPieces made);

  Driver& driver_;
  DriverMemory& memory_;
  Ledger& ledger_;
};

}  // namespace plimsoll
