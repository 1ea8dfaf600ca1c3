// Finds slots of a plan by their context. A slot is the place of one request. Its context is the
// sizes of the `kLength` slots before it, in the order of the plan. After a program has deviated
// from its plan, plimsoll follows the plan again from a slot whose context equals the sizes of the
// program's last requests.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/books/context_hash.h"
#include "plimsoll/planning/program_plan.h"

namespace plimsoll {

template <std::size_t kLength>
class PlanContexts {
 public:
  explicit PlanContexts(const StreamPlan& plan) {
    std::uint32_t begin = 0;
    Last last;
    const auto note_slots = [&](Last before, std::uint32_t end) {
      for (std::uint32_t slot = begin; slot < end; ++slot) {
        if (before.count >= kLength) slots_.push_back({before.hash.value(), slot});
        before.add(plan.slots[slot].size);
      }
      return before;
    };
    for (const PlanSection& section : plan.sections) {
      const std::uint32_t end = begin + section.length;
      last = note_slots(last, end);
      // When a section repeats, its first slots come after its last slots.
      if (section.times > 1) note_slots(last, std::min<std::uint32_t>(end, begin + kLength));
      begin = end;
    }
    std::ranges::sort(slots_);
  }

  // Notes the size of the program's latest request.
  void add(Bytes size) { last_.add(size); }
  // Looks at the slots with the context of the next request: at most `most`, those nearest to
  // `next` first. Calls serves(slot) for each until a call returns true; returns whether one did.
  template <typename Serves>
  [[nodiscard]] bool find(std::uint32_t next, std::uint32_t most, Serves serves) const {
    const auto begin = std::ranges::lower_bound(slots_, Slot{last_.hash.value(), 0});
    auto ahead = std::ranges::lower_bound(begin, slots_.end(), Slot{last_.hash.value(), next});
    auto behind = ahead;
    for (; most > 0; --most) {
      const bool has_ahead = ahead != slots_.end() && ahead->first == last_.hash.value();
      const bool has_behind = behind != begin;
      if (!has_ahead && !has_behind) return false;
      const bool goes_ahead =
          has_ahead && (!has_behind || ahead->second - next <= next - std::prev(behind)->second);
      if (serves(goes_ahead ? (ahead++)->second : (--behind)->second)) return true;
    }
    return false;
  }

 private:
  using Slot = std::pair<std::uint64_t, std::uint32_t>;  // hash of the context, number of the slot

  // The last sizes. The oldest is at count % kLength.
  struct Last {
    ContextHash<kLength> hash;
    std::array<Bytes, kLength> sizes{};
    std::size_t count = 0;
    void add(Bytes size) { hash.add(size, std::exchange(sizes[count++ % kLength], size)); }
  };

  std::vector<Slot> slots_;  // sorted
  Last last_;
};

}  // namespace plimsoll
