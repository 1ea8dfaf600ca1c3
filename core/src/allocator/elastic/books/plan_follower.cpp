#include "plimsoll/allocator/elastic/books/plan_follower.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

PlanFollower::PlanFollower(const StreamPlan& plan, Address base)
    : plan_(plan),
      base_(base),
      height_(plan.height()),
      most_outside_(StreamPlan::top_of(height_) + plan.outside),
      step_(std::clamp(plan.step_length(), kShortestStep, kLongestStep)),
      classes_(plan),
      contexts_(plan, classes_),
      short_contexts_(plan, classes_) {
  std::uint32_t end = 0;
  for (const PlanSection& section : plan.sections) {
    end += section.length;
    ends_.push_back(end);
  }
}

std::size_t PlanFollower::number_of_section(std::uint32_t slot) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(ends_, slot) - ends_.begin());
}

PlanFollower::Range PlanFollower::section_of(std::uint32_t slot) const {
  const std::size_t number = number_of_section(slot);
  if (number == ends_.size()) return {slot, slot, false};
  return {number == 0 ? 0 : ends_[number - 1], ends_[number], plan_.sections[number].times > 1};
}

void PlanFollower::note(Bytes size, Address address) {
  if (!std::exchange(is_asked_, false)) return;
  ++use_.requests;
  use_.bytes += size;
  const bool is_elsewhere =
      place_ == kNone && reached_ != kNone && plan_.slots[reached_].is_elsewhere();
  const bool is_placed = is_elsewhere || (place_ != kNone && address == address_of(place_));
  if (is_placed) use_.placed_bytes += size;
  const std::uint32_t slot = reached_ == kNone && is_placed ? place_ : reached_;
  if (slot != kNone) go_behind(slot);
  if (const auto size_class = classes_.of(slot == kNone ? size : plan_.slots[slot].size)) {
    contexts_.add(*size_class);
    short_contexts_.add(*size_class);
  }
  place_ = reached_ = kNone;
  const bool is_first = at_step_.requests == 0;
  // The plan is judged for the first time when the sizes of all requests add up to the height (the
  // bytes) of the planned area. So a wrong plan costs at most that many bytes of memory.
  const bool has_filled = is_first && use_.bytes >= height_;
  if (has_filled || use_.requests - at_step_.requests >= step_) judge_step();
}

// Sets `next_` to the slot that follows this slot in the plan. At the end of a section that
// repeats, the program either repeats the section or goes on to the next one. `next_` is the first
// slot of the section that the plan expects. The program may leave a section early or repeat it
// more often, so `other_` is the first slot of the other section.
void PlanFollower::go_behind(std::uint32_t slot) {
  const std::size_t section = number_of_section(slot);
  if (section != section_) time_ = 0;
  section_ = section;
  next_ = slot + 1;
  other_ = kNone;
  if (next_ < ends_[section]) return;
  const Range range = section_of(slot);
  const bool is_last = next_ == slots();
  ++time_;
  if (range.repeats && (is_last || time_ < plan_.sections[section].times)) {
    if (!is_last) other_ = next_;
    next_ = range.begin;
    return;
  }
  if (range.repeats) other_ = range.begin;
  if (!is_last) return;
  // After the end of the plan, the program is expected to repeat the last section that repeats.
  for (std::size_t each = plan_.sections.size(); each-- > 0;) {
    if (plan_.sections[each].times == 1) continue;
    next_ = each == 0 ? 0 : ends_[each - 1];
    return;
  }
}

void PlanFollower::judge_step() {
  const Bytes bytes = use_.bytes - at_step_.bytes;
  const Bytes placed = use_.placed_bytes - at_step_.placed_bytes;
  at_step_ = use_;
  if (placed / kLeastPlaced < bytes / 100) {
    use_.dropped = PlanUse::Dropped{use_.requests, bytes, placed};
  }
}

}  // namespace plimsoll
