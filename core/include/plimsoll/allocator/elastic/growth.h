// Where a request finds memory that no free block serves.
//
// A place is chosen among the stream's addresses, and what it lacks of memory comes, in this order,
// from
//
//   1. free pieces of the same arena: they are mapped a second time, at the new address, at once.
//      The stream itself orders the reuse, so nobody waits, unless addresses are to be unmapped
//      first that the stream still works with, and most of the place's memory comes back there.
//      What is mapped there already, since the piece served there before, costs no call of the
//      driver;
//   2. free pieces of other streams and pools, if the work that used them is known to be done;
//   3. the driver, if the limit allows;
//   4. whatever becomes free once all streams have been waited for.
//
// Only then a request fails, or spills where that is the policy: it gets what dedicated memory is
// left, and shared memory for the rest. So free memory is never lost to fragmentation, but for the
// pieces that a live block shares with a free one.
//
// Everything here is guarded by the allocator's `mutex_`; it takes the locks of arenas itself, the
// request's own first.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "plimsoll/allocator/elastic/filler.h"
#include "plimsoll/allocator/elastic/release.h"

namespace plimsoll {

struct Request {
  Bytes requested = 0;
  Bytes size = 0;  // rounded
  MappedSpace* space = nullptr;
  [[nodiscard]] Arena& arena() const { return space->arena(); }
  [[nodiscard]] Request in(MappedSpace& other) const { return {requested, size, &other}; }
};

class Growth {
 public:
  Growth(Arenas& arenas, QueuedWork& work, DriverMemory& memory, Release& release, Filler& filler,
         Moves& moves, Lending& lending, Statistics& statistics, TorchVersion version)
      : arenas_(arenas),
        work_(work),
        memory_(memory),
        release_(release),
        filler_(filler),
        moves_(moves),
        lending_(lending),
        statistics_(statistics),
        version_(version) {}

  void set_spill_policy(SpillPolicy policy) { spill_policy_ = policy; }
  [[nodiscard]] SpillPolicy spill_policy() const { return spill_policy_; }
  // Whether any request got shared memory because dedicated was spent; takes no lock.
  [[nodiscard]] bool has_spilled() const { return has_spilled_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool may_use_shared(bool prefers_shared) const {
    return prefers_shared || spill_policy_ == SpillPolicy::spill;
  }

  // A lent block where the plan says, of a large request; null if there is no plan, or no such
  // place that is free and gets memory. Throws DriverError.
  [[nodiscard]] Block* follow_plan(const Request& request);
  // A lent block where the program had the request in the step before, if its memory serves
  // elsewhere and is free; else null.
  [[nodiscard]] Block* bring_back(const Request& request);
  // A lent block for the request; null if all ways were tried. Throws DriverError.
  [[nodiscard]] Block* grow(const Request& request, bool prefers_shared);
  // Likewise, in this space, and without waiting for other streams.
  [[nodiscard]] Block* try_to_grow(const Request& request);

 private:
  static constexpr Bytes kSizePerPriceOfStaying = 2;  // at least, of a request
  // So many pieces come back where the stream is waited for. To map them takes half a millisecond.
  static constexpr std::size_t kLeastToWaitFor = 16;

  Block* take(const Request& request);
  [[nodiscard]] bool update_plan(Arena& arena);
  Block* take_planned(const Request& request, Address address);
  [[nodiscard]] bool fill_planned(const Request& request, Address address);
  [[nodiscard]] bool waits_for_stream(const Request& request, Address address) const;
  Block* recall(const Request& request);
  Block* revive(const Request& request, std::span<const Address> addresses);
  Block* revive_anywhere(const Request& request);
  Block* lend_revived(const Request& request, const Place& place, FreePieces& pieces);
  Block* lend_grown(const Request& request);
  Block* spill(const Request& request);
  Block* take_from_oom_pools(const Request& request);
  [[nodiscard]] std::vector<FreePiece> sources_for(const Request& request) const;
  [[nodiscard]] static bool stays(const Request& request, const Place& place) {
    return place.price <= request.size / kSizePerPriceOfStaying;
  }
  [[nodiscard]] bool gains_by_waiting(const Request& request);
  [[nodiscard]] std::optional<Place> place_for(const Request& request, const FreePieces& pieces);

  Arenas& arenas_;
  QueuedWork& work_;
  DriverMemory& memory_;
  Release& release_;
  Filler& filler_;
  Moves& moves_;
  Lending& lending_;
  Statistics& statistics_;
  TorchVersion version_;
  SpillPolicy spill_policy_ = SpillPolicy::strict;
  std::atomic<bool> has_spilled_{false};
};

}  // namespace plimsoll
