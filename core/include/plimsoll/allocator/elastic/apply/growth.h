// Finds memory for a request that the hot path could not serve. A place is the range of addresses
// that a request gets. Each step is tried only if those before it failed:
//
//   1. The block that borrowed pieces (lending.h) and was freed last, if its size is exactly the
//      request's size.
//   2. Shared memory, if the thread prefers it.
//   3. The place in the plan of the whole program, if there is a plan and the place gets memory.
//   4. The place that the same request had in the program's previous step. This is tried only if
//      the program surely repeats that step, and if returning pieces can fill the whole place.
//   5. `grow_in`, up to three times. The first call takes pieces from other arenas only within the
//      arena's allowance (arena.h). If the arena has taken many, its allowance is renewed for a
//      second call. The third call may also use free memory of planned areas.
//   6. Free blocks of private pools that allow this (use_on_oom). Before PyTorch 2.11, this step
//      comes after step 7.
//   7. `grow_in` again, after waiting for all streams.
//   8. Dedicated and shared memory together, if the policy is to spill. If that fails, this step is
//      tried once more after waiting for all streams.
//
// `grow_in` tries a free block. Then it tries a place that can be filled completely by pieces that
// are still mapped there. Then it finds out which memory queued work still uses, and plans a place.
// It fills the place first with free pieces of the request's own arena. Queued work may still use
// these pieces, but they can be mapped at the place without waiting, because the stream runs that
// work first. Next come free pieces of arenas whose work is known to be done, and then new memory.
// Outside a planned area, new memory is made only if all of these free pieces together are smaller
// than the request. So fragmentation wastes only the free parts of pieces that also hold a live
// block.
//
// Callers hold the allocator's `mutex_`. The functions here lock arenas themselves, the request's
// own first.
#pragma once

#include <atomic>
#include <deque>
#include <optional>

#include "plimsoll/allocator/elastic/apply/applier.h"
#include "plimsoll/allocator/elastic/apply/release.h"

namespace plimsoll {

struct Request {
  Bytes requested = 0;
  Bytes size = 0;  // the rounded size
  MappedSpace* space = nullptr;
  [[nodiscard]] Arena& arena() const { return space->arena(); }
  [[nodiscard]] Request in(MappedSpace& other) const { return {requested, size, &other}; }
};

class Growth {
 public:
  Growth(Arenas& arenas, QueuedWork& work, Release& release, DriverMemory& memory, Applier& applier,
         Lending& lending, Ledger& ledger)
      : arenas_(arenas),
        work_(work),
        release_(release),
        memory_(memory),
        applier_(applier),
        lending_(lending),
        ledger_(ledger) {}

  void set_spill_policy(SpillPolicy policy) { spill_policy_ = policy; }
  [[nodiscard]] SpillPolicy spill_policy() const { return spill_policy_; }
  // Returns whether any request got shared memory because dedicated memory was full. Takes no lock.
  [[nodiscard]] bool has_spilled() const { return has_spilled_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool may_use_shared(bool prefers_shared) const {
    return prefers_shared || spill_policy_ == SpillPolicy::spill;
  }

  // Returns a block that is lent to the program; null if all steps failed. Throws DriverError.
  [[nodiscard]] Block* serve(const Request& request, bool prefers_shared);

 private:
  // Each function that returns a Block* tries to lend a block to the program. It returns this
  // block, or null if it lent none.
  Block* follow_plan(const Request& request);
  Block* grow(const Request& request, bool prefers_shared);
  Block* grow_in(const Request& request);
  Block* grow_shared(const Request& request, bool prefers_shared);
  Block* take_or_return(const Request& request);
  Block* take_from_oom_pools(const Request& request);
  // The callers of the next functions hold the locks of the arenas involved.
  Block* take(const Request& request);
  Block* take_planned(const Request& request, const PlanFollower::Answer& answer);
  Block* fill_planned(const Request& request, Address address);
  Block* take_at(const Request& request, Address address);
  [[nodiscard]] std::deque<Arena::Guard> lock_givers(const Arena& own);
  Block* apply(const Request& request, std::optional<Plan> plan);

  [[nodiscard]] bool begins_to_share(const MappedSpace& space, const Plan& plan);
  static bool lets_take_from_others(Arena& arena);

  void begin_plan(Arena& arena);
  [[nodiscard]] bool update_plan(Arena& arena);
  // Finds out which memory queued work still uses. All other free memory may move.
  void look_at_queued_work(const Request& request);
  // Returns the plan that `make_plan` makes. If the plan lacks addresses, reserves them and makes
  // the plan again. Returns nothing if the driver refuses the addresses.
  template <typename MakePlan>
  std::optional<Plan> with_addresses(MappedSpace& space, MakePlan make_plan);

  Arenas& arenas_;
  QueuedWork& work_;
  Release& release_;
  DriverMemory& memory_;
  Applier& applier_;
  Lending& lending_;
  Ledger& ledger_;
  SpillPolicy spill_policy_ = SpillPolicy::strict;
  std::atomic<bool> has_spilled_{false};
};

}  // namespace plimsoll
