#include "plimsoll/planning/planner.h"

#include <algorithm>
#include <vector>

#include "plimsoll/planning/packing.h"

namespace plimsoll {
namespace {

// Normally, a slot serves only requests of one size. The planner lets slots serve requests of
// similar sizes only if this saves at least 1/4 of the slots and makes the area at most 1/1000
// higher.
constexpr std::size_t kLeastFewer = 4;
constexpr Bytes kPartForFewerSlots = 1000;
// A slot that serves a request in every step needs a place that is free in all of these steps. This
// may make the area higher. If the area grows by more than 1/200 and by more than 8 MiB, and the
// program has at most `kMostUnfolded` requests, each request gets a slot of its own.
constexpr Bytes kPartForUnfolding = 200;
constexpr Bytes kLeastForUnfolding = 8 * kMiB;
constexpr std::size_t kMostUnfolded = 8192;

// A request's position in the plan: its section, how often the program went through that section
// before, and its slot.
struct Position {
  std::uint32_t section = 0;
  std::uint32_t time = 0;
  std::uint32_t slot = 0;
};

// The plan's time, counted in slots. The program's sections follow one another. Each section takes
// as much time as it has slots, however often the program goes through it.
class FoldedTime {
 public:
  explicit FoldedTime(std::vector<Section> sections) : sections_(std::move(sections)) {
    std::uint32_t start = 0;
    for (const Section& section : sections_) {
      starts_.push_back(start);
      start += section.length;
    }
    starts_.push_back(start);
  }

  [[nodiscard]] const std::vector<Section>& sections() const { return sections_; }
  [[nodiscard]] std::uint32_t slots() const { return starts_.back(); }
  [[nodiscard]] Position of(std::uint32_t request) const {
    const auto after = std::ranges::upper_bound(sections_, request, {}, &Section::first);
    const auto number = static_cast<std::uint32_t>(after - sections_.begin() - 1);
    const std::uint32_t place = request - sections_[number].first;
    return {number, place / sections_[number].length,
            starts_[number] + place % sections_[number].length};
  }
  // Adds a block's lifetime: from `begin`, its request, to `last`, the last request before its
  // free.
  void add_life(TimedBlock& block, const Position& begin, const Position& last) const {
    const std::uint32_t start = starts_[begin.section];
    if (begin.section == last.section && last.time == begin.time + 1 && last.slot < begin.slot) {
      extend(block.live, {begin.slot, starts_[begin.section + 1]});
      extend(block.carried, {start, last.slot + 1});
      return;
    }
    const bool is_in_one = begin.section == last.section && begin.time == last.time;
    const bool comes_again = begin.time + 1 < sections_[begin.section].times;
    const bool came_before = last.time > 0;
    const std::uint32_t from = !is_in_one && comes_again ? start : begin.slot;
    const bool enters = begin.section < last.section && sections_[last.section].times > 1;
    if (enters && !came_before) {
      extend(block.live, {from, starts_[last.section]});
      extend(block.entered, {starts_[last.section], last.slot + 1});
      return;
    }
    extend(block.live,
           {from, !is_in_one && came_before ? starts_[last.section + 1] : last.slot + 1});
  }

 private:
  static void extend(TimeSpan& span, const TimeSpan& by) {
    if (span.begin == span.end) {
      span = by;
      return;
    }
    span = {std::min(span.begin, by.begin), std::max(span.end, by.end)};
  }

  std::vector<Section> sections_;
  // Holds the first slot of each section and, as the last entry, the number of all slots.
  std::vector<std::uint32_t> starts_;
};

struct Planned {
  StreamPlan plan;
  Bytes height = 0;
};

// Returns the most bytes that are live at once. Counts only the blocks whose `is_shared` has the
// given value.
Bytes most_live(std::span<const TimedRequest> requests, bool is_shared) {
  std::vector<Bytes> freed(requests.size() + 1);  // the bytes freed just before each request
  Bytes live = 0;
  Bytes most = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    live -= freed[i];
    if (requests[i].is_shared != is_shared) continue;
    freed[requests[i].end] += requests[i].size;
    most = std::max(most, live += requests[i].size);
  }
  return most;
}

Planned plan_in_sections(std::span<const TimedRequest> requests, std::vector<Section> sections) {
  const FoldedTime time(std::move(sections));
  std::vector<TimedBlock> blocks(time.slots());
  Planned planned;
  planned.plan.slots.resize(time.slots());
  planned.plan.outside = most_live(requests, true);
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    const Position begin = time.of(i);
    TimedBlock& block = blocks[begin.slot];
    PlanSlot& slot = planned.plan.slots[begin.slot];
    slot.least = slot.size == 0 ? requests[i].size : std::min(slot.least, requests[i].size);
    slot.size = std::max(slot.size, requests[i].size);
    if (requests[i].is_shared) {
      slot.offset = PlanSlot::kElsewhere;
      continue;
    }
    block.size = slot.size;
    time.add_life(block, begin, time.of(requests[i].end - 1));
  }
  const Packing packing = pack(blocks);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    PlanSlot& slot = planned.plan.slots[i];
    if (!slot.is_elsewhere()) slot.offset = packing.offsets[i];
  }
  for (const Section& section : time.sections()) {
    planned.plan.sections.push_back({section.length, section.times});
  }
  planned.height = packing.height;
  return planned;
}

}  // namespace

StreamPlan plan_stream(std::span<const TimedRequest> requests) {
  if (requests.empty()) return {};
  Planned exact = plan_in_sections(requests, find_sections(requests, Likeness::same_size));
  const auto is_too_high = [&exact](Bytes height) {
    return exact.height > height + std::max(height / kPartForUnfolding, kLeastForUnfolding);
  };
  const bool is_folded = exact.plan.slots.size() < requests.size();
  if (is_folded && requests.size() <= kMostUnfolded && is_too_high(most_live(requests, false))) {
    const auto count = static_cast<std::uint32_t>(requests.size());
    Planned unfolded = plan_in_sections(requests, {{0, count, 1}});
    if (is_too_high(unfolded.height)) return unfolded.plan;
  }
  std::vector<Section> fewer = find_sections(requests, Likeness::similar_size);
  std::size_t slots = 0;
  for (const Section& section : fewer) slots += section.length;
  if (slots > exact.plan.slots.size() / kLeastFewer * (kLeastFewer - 1)) return exact.plan;
  const Planned similar = plan_in_sections(requests, std::move(fewer));
  const bool is_as_low = similar.height <= exact.height + exact.height / kPartForFewerSlots;
  return is_as_low ? similar.plan : exact.plan;
}

}  // namespace plimsoll
