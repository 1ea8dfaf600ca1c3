// Carries out plans. A plan (plan.h) says which memory is to be mapped at which addresses. The
// applier calls the driver first, and changes the allocator's records only if all calls succeeded:
//
//   make new memory -> unmap retired addresses -> map pieces -> change the records (books/)
//
// books/mapped_space.h explains pieces, retired addresses and holes. If the limit or the driver
// refuses, new memory is released, and the records still have each piece at its old address. The
// only change is that retired addresses that were already unmapped are holes now. Callers hold the
// allocator's `mutex_` and the locks of the arenas involved.
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

  // Carries out the plan. Afterwards the memory that the plan names lies in `space` and is free.
  // Returns false if the limit or the driver refuses memory. Throws DriverError.
  [[nodiscard]] bool apply(MappedSpace& space, Plan plan);

 private:
  // One entry for each `Filling` (plan.h) of a plan: the new piece, or null if the filling uses a
  // piece that exists.
  using NewPieces = std::vector<std::unique_ptr<Piece>>;

  [[nodiscard]] Status create(const MappedSpace& space, std::vector<Filling>& fillings,
                              Bytes shared_room, NewPieces& made);
  [[nodiscard]] Status clear(MappedSpace& space, std::vector<Address> retired);
  // Maps every filling that is not mapped yet. If a driver call fails, this function unmaps what it
  // has mapped. A range that the driver refuses to unmap is retired.
  [[nodiscard]] Status map(MappedSpace& space, const std::vector<Filling>& fillings,
                           const NewPieces& made);
  void commit(MappedSpace& space, const std::vector<Filling>& fillings, NewPieces made);

  Driver& driver_;
  DriverMemory& memory_;
  Ledger& ledger_;
};

}  // namespace plimsoll
