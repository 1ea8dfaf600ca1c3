// Follows the plan of a stream: where shall this request lie?
//
// `next_` is the slot that the next request should fill. A request takes it if it has the slot's
// size and the place is free. Otherwise the program has deviated: the nearest slot of that size, at
// most `kReach` slots away, is where the program is from then on, and the nearest of them with a
// free place serves. If no slot is near, the next slot's place serves a request that needs half of
// it or more. A request for which the plan has no place lies elsewhere.
//
// Whether a place is free is asked for each request, so a wrong plan costs memory, and with a tight
// limit that memory may be what a later request lacks. A plan of which a step takes less than
// `kLeastPlaced` is dropped; the first time, after requests for as much as the area. All of this
// counts requests, and none of it asks the time: a simulated run decides as a real one.
//
// What always holds:
//   next_ < slots, or == slots where the plan has ended;
//   place_ is the slot whose place `find` returned last, and reached_ the slot that the program has
//     reached with that request, until `note` has seen it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "plimsoll/planning/program_plan.h"

namespace plimsoll {

// How far a program followed the plan of one stream.
struct PlanUse {
  std::uint64_t requests = 0;  // large ones
  Bytes bytes = 0;             // that they asked for
  Bytes placed_bytes = 0;      // of these, where the plan says, or outside its area if it says that
  struct Dropped {
    std::uint64_t request = 0;  // after so many
    Bytes bytes = 0;            // of the last step
    Bytes placed_bytes = 0;
  };
  std::optional<Dropped> dropped;
};

class PlanFollower {
 public:
  // Slots in either direction among which a place is looked for.
  static constexpr std::uint32_t kReach = 400;

  // The area begins at `base`. The plan outlives the follower.
  PlanFollower(const StreamPlan& plan, Address base);

  [[nodiscard]] bool is_followed() const { return !use_.dropped; }
  [[nodiscard]] const PlanUse& use() const { return use_; }
  struct Answer {
    Address address = 0;   // 0: the plan has no place for the request
    bool is_next = false;  // it is the slot that should come next
  };
  // Where a request of this size shall lie. `is_free(address, size)` says whether no block lies
  // there.
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
    const bool is_near = is_next || find_near(serves);
    if (!is_near && may_lie_in(next_, size) && is_free(address_of(next_), size)) place_ = next_;
    return {place_ == kNone ? 0 : address_of(place_), is_next};
  }
  // A request was served at this address, by the plan or elsewhere. One for which no place was
  // asked does not count.
  void note(Bytes size, Address address);

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kShortestStep = 256;  // requests, over which bytes are compared
  static constexpr std::uint32_t kLongestStep = 16384;
  // The share of a step's bytes that has to lie where the plan says, in percent.
  static constexpr Bytes kLeastPlaced = 80;

  [[nodiscard]] std::uint32_t slots() const {
    return static_cast<std::uint32_t>(plan_.slots.size());
  }
  [[nodiscard]] Address address_of(std::uint32_t slot) const {
    return base_ + plan_.slots[slot].offset;
  }
  // Whether the slot has a place, of which the request needs at least half.
  [[nodiscard]] bool may_lie_in(std::uint32_t slot, Bytes size) const {
    if (slot >= slots() || plan_.slots[slot].is_elsewhere()) return false;
    const Bytes planned = plan_.slots[slot].size;
    return planned / 2 <= size && size <= planned;
  }
  // Calls serves(slot) for slots near the next one, the nearest first, until one does. A section
  // that repeats is near its own start at its end, as well as the section behind it.
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
  Bytes height_;                     // of the area
  std::vector<std::uint32_t> ends_;  // of the sections
  std::uint32_t step_;               // requests
  std::uint32_t next_ = 0;
  std::uint32_t other_ = kNone;  // what may come as well, where a section ends
  bool is_asked_ = false;        // for a place, by a request that was not served yet
  std::uint32_t place_ = kNone;
  std::uint32_t reached_ = kNone;
  std::size_t section_ = 0;  // of the slot that was reached last
  std::uint32_t time_ = 0;   // how often it was gone through before
  PlanUse use_;
  PlanUse at_step_;  // when the step began
};

}  // namespace plimsoll
