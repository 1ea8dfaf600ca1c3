#include "plimsoll/allocator/elastic/apply/growth.h"

#include <deque>
#include <utility>

#include "plimsoll/allocator/elastic/plan/planned_area.h"

namespace plimsoll {

Block* Growth::serve(const Request& request, bool prefers_shared) {
  Arena& arena = request.arena();
  work_.poll_for(arena, request.size);
  if (Block* const block =
          lending_.take_borrowed(*request.space, request.size, request.requested)) {
    return block;
  }
  if (prefers_shared) {
    if (Block* const block = grow_in(request.in(arena.shared))) return block;
  }
  if (!request.space->small() && !prefers_shared) {
    if (Block* const block = follow_plan(request)) return block;
  }
  {
    const Arena::Guard guard(arena);
    if (Block* const block = apply(request, plan_sure_return(*request.space, request.size))) {
      return block;
    }
  }
  return grow(request, prefers_shared);
}

// Assigns the next plan to a stream at its first large request, and reserves addresses for the
// plan. The follower's constructor sorts the plan's contexts, which takes some milliseconds for a
// long plan. The function locks the arena only after that, so that other threads can free the
// arena's blocks meanwhile.
void Growth::begin_plan(Arena& arena) {
  const StreamPlan* const plan = arenas_.next_plan(arena);
  const Bytes size = plan == nullptr ? 0 : round_up(plan->height(), kGranule);
  if (size == 0) return;
  const std::optional<AddressRange> area = memory_.reserve_area(size);
  if (!area) return;
  PlanFollower follower(*plan, area->address);
  const Arena::Guard guard(arena);
  arenas_.add_reservation(arena.planned, *area);
  arena.plan.emplace(std::move(follower));
}

// Returns whether the arena follows a plan. If it does, completes the pending frees whose GPU work
// has finished, because a block occupies its planned place until its free is complete. Also
// releases the memory of a plan that the arena has dropped.
bool Growth::update_plan(Arena& arena) {
  if (arenas_.awaits_plan(arena)) begin_plan(arena);
  bool is_followed = false;
  bool has_waiting = false;
  bool is_dropped = false;
  {
    const Arena::Guard guard(arena);
    is_followed = arena.is_planned();
    if (arenas_.is_capturing()) return is_followed;
    has_waiting = !arena.waiting.is_empty();
    is_dropped = arena.keeps_dropped_area;
  }
  if (is_followed && has_waiting) work_.poll();
  if (is_dropped && release_.release_planned(arena)) {
    const Arena::Guard guard(arena);
    arena.keeps_dropped_area = false;
  }
  return is_followed;
}

// Serves the request at its planned place; null if that is not possible. If the place is free, but
// the stream has not finished its work on the memory that was freed there, the host waits, because
// the address of a request must not depend on timing.
Block* Growth::follow_plan(const Request& request) {
  Arena& arena = request.arena();
  if (!update_plan(arena)) return nullptr;
  PlanFollower::Answer answer;
  {
    const Arena::Guard guard(arena);
    if (arena.is_planned()) answer = arena.find_planned(request.size);
    if (answer.address == 0) return nullptr;
    if (Block* const block = take_planned(request, answer)) return block;
  }
  if (!arenas_.is_capturing()) work_.mark_givers(arena);
  {
    const Arena::Guard guard(arena);
    if (Block* const block = fill_planned(request, answer.address)) return block;
    if (arenas_.is_capturing() || !waits_to_lie_at(arena.planned, request.size, answer.address)) {
      return nullptr;
    }
  }
  work_.mark_idle(arena, true);
  const Arena::Guard guard(arena);
  return fill_planned(request, answer.address);
}

// Serves the request at its planned place; null if that is not possible. First it tries free memory
// that is mapped there, then new memory, and finally pieces that were mapped there before and can
// return to the place. New memory is mapped in parts of the planned area. A part may be much larger
// than the request, and if the program deviates from the plan, one live block can keep the whole
// part from other requests. So parts are mapped only for the request that comes next in the plan,
// and only while memory is not short.
Block* Growth::take_planned(const Request& request, const PlanFollower::Answer& answer) {
  MappedSpace& planned = request.arena().planned;
  const AddressRange range{answer.address, request.size};
  if (Block* const block = take_at(request, range.address)) return block;
  if (answer.is_next && !request.arena().planned_gives) {
    Plan parts = plan_parts(planned, range);
    if (parts.makes_memory() && applier_.apply(planned, std::move(parts))) {
      if (Block* const block = take_at(request, range.address)) return block;
    }
  }
  std::optional<Plan> plan = plan_return_to(planned, range.size, range.address);
  const bool has_returned = plan && applier_.apply(planned, *std::move(plan));
  return has_returned ? take_at(request, range.address) : nullptr;
}

// Maps free and new memory at the request's planned place and serves the request there; null if
// that is not possible. If new memory is refused, renews the arena's allowance to take pieces from
// other arenas, and tries again. If this function failed instead, `grow` would renew the allowance,
// and would serve the request from the same pieces, but outside the planned area.
Block* Growth::fill_planned(const Request& request, Address address) {
  MappedSpace& planned = request.arena().planned;
  const std::deque<Arena::Guard> givers = lock_givers(request.arena());
  do {
    std::optional<Plan> plan = plan_growth_at(arenas_, planned, request.size, address);
    if (!plan) return nullptr;
    if (applier_.apply(planned, *std::move(plan))) return take_at(request, address);
  } while (lets_take_from_others(request.arena()));
  return nullptr;
}

Block* Growth::take_at(const Request& request, Address address) {
  Block* const block = request.arena().planned.take_at(address, request.size);
  return block == nullptr ? nullptr : lending_.lend(block, request.requested);
}

// Locks the arenas that may give memory to `own`. The caller holds the guards until the memory has
// moved.
std::deque<Arena::Guard> Growth::lock_givers(const Arena& own) {
  std::deque<Arena::Guard> givers;
  for (Arena& other : arenas_.all()) {
    if (&other != &own && other.may_give_to_others()) givers.emplace_back(other);
  }
  return givers;
}

Block* Growth::grow(const Request& request, bool prefers_shared) {
  const bool pools_first = ledger_.version().uses_oom_pools_first();
  const auto lets_take = [&request] {
    const Arena::Guard guard(request.arena());
    return lets_take_from_others(request.arena());
  };
  Block* block = grow_in(request);
  if (block == nullptr && lets_take()) block = grow_in(request);
  if (block == nullptr && arenas_.let_planned_give()) block = grow_in(request);
  if (block == nullptr && pools_first) block = take_from_oom_pools(request);
  const bool spills = spill_policy_ == SpillPolicy::spill;
  const bool may_wait = !arenas_.is_capturing();
  if (block == nullptr && may_wait &&
      (!spills || work_.may_gain_by_waiting(request.arena(), Tiers::dedicated))) {
    work_.wait_for_all();
    block = grow_in(request);
  }
  if (block == nullptr && !pools_first) block = take_from_oom_pools(request);
  if (block != nullptr || !may_use_shared(prefers_shared)) return block;
  block = grow_shared(request, prefers_shared);
  if (block == nullptr && may_wait && work_.may_gain_by_waiting(request.arena(), Tiers::both)) {
    work_.wait_for_all();
    block = grow_shared(request, prefers_shared);
  }
  return block;
}

// Serves the request from shared memory if the thread prefers shared memory. If this does not serve
// the request and the policy is "spill", serves the request from both tiers: from dedicated memory
// as far as there is room, and from shared memory for the rest.
Block* Growth::grow_shared(const Request& request, bool prefers_shared) {
  if (prefers_shared) {
    if (Block* const block = grow_in(request.in(request.arena().shared))) return block;
  }
  if (spill_policy_ != SpillPolicy::spill) return nullptr;
  Block* const block = grow_in(request.in(request.arena().spilled));
  if (block != nullptr && block->shared > 0) {
    ++ledger_.statistics().num_spills;
    has_spilled_.store(true, std::memory_order_relaxed);
  }
  return block;
}

Block* Growth::grow_in(const Request& request) {
  if (Block* const block = take_or_return(request)) return block;
  look_at_queued_work(request);
  Arena& arena = request.arena();
  MappedSpace& space = *request.space;
  const Arena::Guard guard(arena);
  if (Block* const block = take(request)) return block;

  const std::deque<Arena::Guard> givers = lock_givers(arena);
  const Bytes dedicated_room =
      space.tiers() == Tiers::both ? round_down(memory_.dedicated_room(), kGranule) : 0;
  const auto make_plan = [&] {
    std::optional<Plan> plan = with_addresses(
        space, [&] { return plan_growth(arenas_, space, request.size, dedicated_room); });
    if (!plan || !plan->makes_memory()) return plan;
    // Whole free pieces are preferred to new memory, even if the driver still has free memory. So
    // the allocator's choices do not depend on the memory limit until the limit refuses memory.
    auto whole =
        with_addresses(space, [&] { return plan_whole_pieces(arenas_, space, request.size); });
    return whole ? std::move(whole) : std::move(plan);
  };
  std::optional<Plan> plan = make_plan();
  if (plan && plan->makes_memory() && begins_to_share(space, *plan)) plan = make_plan();
  return apply(request, std::move(plan));
}

// Returns whether applying `plan` would make the arena's large memory outside the planned area
// exceed `most_outside` for the first time. From then on, free memory of the planned area may also
// serve requests that have no place there.
bool Growth::begins_to_share(const MappedSpace& space, const Plan& plan) {
  Arena& arena = space.arena();
  if (&space != &arena.large || !arena.is_planned() || arena.planned_gives) return false;
  Bytes outside = plan.new_memory(Tier::dedicated);
  space.for_each_piece([&outside](const Piece& piece) { outside += piece.size; });
  if (outside <= arena.plan->most_outside()) return false;
  arena.planned_gives = true;
  return true;
}

// Renews the arena's allowance to take pieces from other arenas, because new memory was refused.
// Returns false if the arena has not used up its allowance, or if its pool is private. The caller
// has locked the arena.
bool Growth::lets_take_from_others(Arena& arena) {
  if (!arena.pool->is_default() || arena.taken < Arena::kTakesAtFirst) return false;
  arena.taken = 0;
  return true;
}

template <typename MakePlan>
std::optional<Plan> Growth::with_addresses(MappedSpace& space, MakePlan make_plan) {
  std::optional<Plan> plan = make_plan();
  if (!plan || plan->lacks_addresses == 0) return plan;
  const auto range = memory_.reserve_addresses(space.tiers(), plan->lacks_addresses);
  if (!range) return std::nullopt;
  arenas_.add_reservation(space, *range);
  plan = make_plan();
  return plan && plan->lacks_addresses == 0 ? std::move(plan) : std::nullopt;
}

void Growth::look_at_queued_work(const Request& request) {
  Arena& arena = request.arena();
  if (!arenas_.is_capturing()) {
    work_.poll();
    work_.mark_givers(arena);
    const bool waits = [&] {
      const Arena::Guard guard(arena);
      return gains_by_waiting(*request.space, request.size);
    }();
    if (waits) work_.mark_idle(arena, true);
    request.space->no_split() ? release_.clear_retired(arena) : release_.bound_retired(arena);
  }
  memory_.map_lost();
}

Block* Growth::take(const Request& request) {
  Block* const block = request.space->take(request.size);
  return block == nullptr ? nullptr : lending_.lend(block, request.requested);
}

// Serves the request from free memory, or from pieces that had moved elsewhere and return to their
// old addresses without a driver call. Returns null if neither suffices.
Block* Growth::take_or_return(const Request& request) {
  const Arena::Guard guard(request.arena());
  if (Block* const block = take(request)) return block;
  return apply(request, plan_return(*request.space, request.size));
}

Block* Growth::apply(const Request& request, std::optional<Plan> plan) {
  if (!plan || !applier_.apply(*request.space, *std::move(plan))) return nullptr;
  Block* const block = take(request);
  block->borrows = request.space->has_pieces_away();
  return block;
}

Block* Growth::take_from_oom_pools(const Request& request) {
  if (!request.arena().pool->is_default()) return nullptr;
  for (const auto& [id, pool] : arenas_.private_pools()) {
    if (!pool.use_on_oom || pool.is_paused) continue;
    Arena* const arena = arenas_.find(pool, request.arena().stream);
    if (arena == nullptr) continue;
    const Arena::Guard guard(*arena);
    if (Block* const block = take(request.in(arena->space_for(request.space->small())))) {
      return block;
    }
  }
  return nullptr;
}

}  // namespace plimsoll
