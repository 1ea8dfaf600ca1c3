// Follows the plan of a stream (program_plan.h): finds where each large request is to lie. A plan
// has a slot for each request. A slot has the request's size and its place in the stream's area.
// The area is a range of addresses for planned requests only.
//
// `next_` is the slot that the next request should fill. A request takes that slot if it has the
// slot's size and the place is free. Otherwise the program has deviated from the plan, and the
// follower searches these slots of the request's size, in this order:
//
// 1. Slots whose kContext predecessors have the size classes (plan_contexts.h) of the program's
//    last kContext requests. The program may be back on its plan there. For example, a GradScaler
//    that skips the first steps makes the optimizer create its state some steps later than planned.
//    The requests just before the creation of the state have the same sizes as in the plan, so they
//    show where the plan has the state.
// 2. Slots whose kShortContext predecessors have the size classes of the last kShortContext
//    requests.
// 3. All slots at most `kReach` away, the nearest first.
//
// The first slot found becomes the program's position in the plan. The first slot with a free place
// serves the request. If no slot serves it, the request gets the place of slot `next_`, provided
// that this place is free, and that the request fits into it and fills at least half of it. A
// request for which the plan has no place lies outside the area.
//
// Each place is checked to be free, so a wrong plan only costs memory. Under a tight limit, a later
// request may lack that memory, so there are two remedies. If requests outside the area need more
// than `most_outside` bytes, they may use free memory of the area. If less than `kLeastPlaced`
// percent of a step's bytes lie where the plan has them, the plan is dropped at the end of the
// step. The first step ends early if the sizes of its requests add up to the size of the area, so a
// wrong plan costs at most that much memory. All decisions depend on requests, none on time, so a
// simulated run decides as a real one does.
//
// Invariants:
// - next_ is the number of a slot. After the plan's end it may be the number of slots.
// - Between the calls of `find` and `note` for a request, place_ is the slot whose place `find`
//   returned, and reached_ is the first slot found, the program's new position. Each is kNone if
//   there is no such slot. Both are kNone after `note`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "plimsoll/allocator/elastic/books/plan_contexts.h"
#include "plimsoll/planning/program_plan.h"

namespace plimsoll {

// How far a program followed the plan of one stream.
struct PlanUse {
  std::uint64_t requests = 0;  // number of large requests
  Bytes bytes = 0;             // bytes that the requests asked for
  // Bytes that lie where the plan says, inside or outside the area.
  Bytes placed_bytes = 0;
  struct Dropped {
    std::uint64_t request = 0;  // number of requests before the plan was dropped
    Bytes bytes = 0;            // bytes requested in the step that ended then
    Bytes placed_bytes = 0;
  };
  std::optional<Dropped> dropped;
};

class PlanFollower {
 public:
  // How many slots ahead and behind are searched for a place.
  static constexpr std::uint32_t kReach = 400;
  // A slot matches if the kContext slots before it have the size classes of the last requests. This
  // long context tells apart layers that look alike. If no slot matches, only kShortContext classes
  // are compared, because a program that has just deviated matches the plan only for a few
  // requests.
  static constexpr std::size_t kContext = 16;
  static constexpr std::size_t kShortContext = 4;

  // Follows `plan` in an area that begins at `base`. The plan outlives the follower.
  PlanFollower(const StreamPlan& plan, Address base);

  [[nodiscard]] bool is_followed() const { return !use_.dropped; }
  [[nodiscard]] const PlanUse& use() const { return use_; }
  // Returns how many bytes the stream's large requests may need outside the area. If they need
  // more, they also get free memory of the area. The result is the memory that the plan itself
  // places outside, plus the size of the area's top part (StreamPlan::top_of).
  [[nodiscard]] Bytes most_outside() const { return most_outside_; }
  struct Answer {
    Address address = 0;   // 0: the plan has no place for the request
    bool is_next = false;  // whether the slot that should come next serves the request
  };
  // Returns where a request of this size is to lie. `is_free(address, size)` returns whether no
  // block in use overlaps these addresses.
  template <typename IsFree>
  [[nodiscard]] Answer find(Bytes size, IsFree is_free) {
    is_asked_ = true;
    place_ = reached_ = kNone;
    const auto serves = [&](std::uint32_t slot) {
      if (slot >= slots() || !plan_.slots[slot].serves(size)) return false;
      if (reached_ == kNone) reached_ = slot;
      if (plan_.slots[slot].is_elsewhere()) return true;
      if (!is_free(address_of(slot), size)) return false;
      place_ = slot;
      return true;
    };
    const bool is_next = serves(next_);
    const bool is_found = is_next || contexts_.find(next_, kReach, serves) ||
                          short_contexts_.find(next_, kReach, serves) || find_near(serves);
    if (!is_found && may_lie_in(next_, size) && is_free(address_of(next_), size)) place_ = next_;
    return {place_ == kNone ? 0 : address_of(place_), is_next};
  }
  // Notes the address that a request got, inside or outside the planned area. Ignores a request
  // for which `find` was not called.
  void note(Bytes size, Address address);

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  // Limits of a step's length, in requests. The plan is checked once a step.
  static constexpr std::uint32_t kShortestStep = 256;
  static constexpr std::uint32_t kLongestStep = 16384;
  // The share of a step's bytes that has to lie where the plan says, in percent.
  static constexpr Bytes kLeastPlaced = 80;

  [[nodiscard]] std::uint32_t slots() const {
    return static_cast<std::uint32_t>(plan_.slots.size());
  }
  [[nodiscard]] Address address_of(std::uint32_t slot) const {
    return base_ + plan_.slots[slot].offset;
  }
  // Returns whether the slot has a place, and a request of this size fits into it and fills at
  // least half of it.
  [[nodiscard]] bool may_lie_in(std::uint32_t slot, Bytes size) const {
    if (slot >= slots() || plan_.slots[slot].is_elsewhere()) return false;
    const Bytes planned = plan_.slots[slot].size;
    return planned / 2 <= size && size <= planned;
  }
  // Calls serves(slot) for the slots around `next_`, the nearest first, until a call returns true.
  // Because a section may repeat, its last slot may be followed by its own first slot or by the
  // first slot of the next section.
  template <typename Serves>
  [[nodiscard]] bool find_near(Serves serves) const {
    if (serves(other_)) return true;
    const Range section = section_of(next_);
    for (std::uint32_t away = 1; away <= kReach; ++away) {
      const std::uint32_t ahead = next_ + away;
      if (serves(ahead)) return true;
      if (section.repeats && ahead >= section.end &&
          serves(section.begin + (ahead - section.end) % section.size())) {
        return true;
      }
      if (away <= next_ && serves(next_ - away)) return true;
      if (section.repeats && next_ < section.begin + away &&
          serves(section.end - 1 - (section.begin + away - next_ - 1) % section.size())) {
        return true;
      }
      if (other_ != kNone && serves(other_ + away)) return true;
    }
    return false;
  }
  struct Range {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    bool repeats = false;
    [[nodiscard]] std::uint32_t size() const { return end - begin; }
  };
  [[nodiscard]] std::size_t number_of_section(std::uint32_t slot) const;
  [[nodiscard]] Range section_of(std::uint32_t slot) const;
  void go_behind(std::uint32_t slot);
  void judge_step();

  const StreamPlan& plan_;
  Address base_;
  Bytes height_;  // size of the area
  Bytes most_outside_;
  std::vector<std::uint32_t> ends_;  // ends of the sections
  std::uint32_t step_;               // length of a step, in requests
  SizeClasses classes_;              // requests of no class are not part of a context
  PlanContexts<kContext> contexts_;
  PlanContexts<kShortContext> short_contexts_;
  std::uint32_t next_ = 0;
  std::uint32_t other_ = kNone;  // at the end of a section: another slot that may come next
  bool is_asked_ = false;        // `find` was called, and `note` not yet
  std::uint32_t place_ = kNone;
  std::uint32_t reached_ = kNone;
  std::size_t section_ = 0;  // section of the slot that was reached last
  std::uint32_t time_ = 0;   // how often the program went through `section_` before
  PlanUse use_;
  PlanUse at_step_;  // `use_` when the step began
};

}  // namespace plimsoll
