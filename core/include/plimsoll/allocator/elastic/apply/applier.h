// Carries out plans. It calls the driver first, and changes the books only if all calls succeeded.
//
//   new memory is made -> retired addresses are unmapped -> pieces are mapped -> the books change
//
// If the limit or the driver refuses, no piece has moved in the books, and new memory is released;
// retired addresses that were already unmapped become a hole. Callers hold the allocator's `mutex_`
// and the locks of the arenas involved.
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

  // Carries out the plan: afterwards its memory is free in the space. Returns false if the limit or
  // the driver refuses. Throws DriverError.
  [[nodiscard]] bool apply(MappedSpace& space, Plan plan);

 private:
  using NewPieces = std::vector<std::unique_ptr<Piece>>;  // one for each filling; null if not new

  [[nodiscard]] Status create(const MappedSpace& space, std::vector<Filling>& fillings,
                              Bytes shared_room, NewPieces& made);
  [[nodiscard]] Status clear(MappedSpace& space, std::vector<Address> retired);
  // Maps every filling that is not mapped yet. If a call fails, unmaps them again; ranges that the
  // driver then refuses to unmap are retired.
  [[nodiscard]] Status map(MappedSpace& space, const std::vector<Filling>& fillings,
                           const NewPieces& made);
  void commit(MappedSpace& space, const std::vector<Filling>& fillings, NewPieces made);

  Driver& driver_;
  DriverMemory& memory_;
  Ledger& ledger_;
};

}  // namespace plimsoll
