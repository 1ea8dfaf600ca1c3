// Finds slots of a plan by their context. A slot is the place of one request. Its context is the
// size classes of the `kLength` slots before it, in the order of the plan. After a program has
// deviated from its plan, plimsoll follows the plan again from a slot whose context equals the size
// classes of the program's last requests.
//
// Sizes are compared by class, because one slot may serve requests of several sizes. Sizes that one
// slot serves are of one class. For example, slots of 4 to 6 MiB, of 5 to 8 MiB and of 9 MiB make
// two classes: 4 to 8 MiB, and 9 MiB. In a plan whose slots serve one size each, each size is a
// class.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/books/context_hash.h"
#include "plimsoll/planning/program_plan.h"

namespace plimsoll {

class SizeClasses {
 public:
  explicit SizeClasses(const StreamPlan& plan) {
    std::vector<Class> ranges;
    for (const PlanSlot& slot : plan.slots) ranges.push_back({slot.least, slot.size});
    std::ranges::sort(ranges, {}, &Class::least);
    for (const Class& range : ranges) {
      const bool is_new = classes_.empty() || classes_.back().most < range.least;
      if (is_new) classes_.push_back(range);
      classes_.back().most = std::max(classes_.back().most, range.most);
    }
  }

  // Returns the smallest size of the class to which this size belongs; nothing if the size belongs
  // to no class.
  [[nodiscard]] std::optional<Bytes> of(Bytes size) const {
    const auto after = std::ranges::upper_bound(classes_, size, {}, &Class::least);
    if (after == classes_.begin() || std::prev(after)->most < size) return std::nullopt;
    return std::prev(after)->least;
  }

 private:
  struct Class {
    Bytes least = 0;
    Bytes most = 0;
  };
  std::vector<Class> classes_;  // sorted, without overlaps
};

template <std::size_t kLength>
class PlanContexts {
 public:
  PlanContexts(const StreamPlan& plan, const SizeClasses& classes) {
    std::uint32_t begin = 0;
    Last last;
    for (const PlanSection& section : plan.sections) {
      const std::uint32_t end = begin + section.length;
      // A section may repeat, so its first slots may follow its last slots. In the first rounds,
      // contexts reach back to earlier sections. In round number `rounds`, all contexts lie within
      // the section, so further rounds would have the same contexts.
      const std::size_t rounds = kLength / section.length + 2;
      for (std::size_t round = 0; round < std::min<std::size_t>(section.times, rounds); ++round) {
        for (std::uint32_t slot = begin; slot < end; ++slot) {
          if (last.count >= kLength) slots_.push_back({last.hash.value(), slot});
          last.add(*classes.of(plan.slots[slot].size));
        }
      }
      begin = end;
    }
    std::ranges::sort(slots_);
    const auto repeated = std::ranges::unique(slots_);
    slots_.erase(repeated.begin(), repeated.end());
  }

  // Notes the size class of the program's latest request.
  void add(Bytes size_class) { last_.add(size_class); }
  // Calls serves(slot) for slots that have the context of the next request, until a call returns
  // true. Begins with the slots nearest to `next`, and makes at most `most` calls. Returns whether
  // a call returned true.
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

  // The last size classes. The oldest is at count % kLength.
  struct Last {
    ContextHash<kLength> hash;
    std::array<Bytes, kLength> classes{};
    std::size_t count = 0;
    void add(Bytes added) { hash.add(added, std::exchange(classes[count++ % kLength], added)); }
  };

  std::vector<Slot> slots_;  // sorted
  Last last_;
};

}  // namespace plimsoll
