#include "plimsoll/planning/program_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace plimsoll {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_slot(const PlanSlot& slot) {
  require(slot.least > ProgramPlan::kSmallRequest && slot.size <= ProgramPlan::kMostBytes,
          "a slot is as large as no large request");
  require(slot.least <= slot.size, "a slot's smallest size is above its largest");
  const auto is_aligned = [](Bytes bytes) { return bytes % ProgramPlan::kAlignment == 0; };
  require(is_aligned(slot.size) && is_aligned(slot.least),
          "the size of a slot is no multiple of 512 bytes");
  if (slot.is_elsewhere()) return;
  require(is_aligned(slot.offset), "the offset of a slot is no multiple of 512 bytes");
  require(slot.offset <= ProgramPlan::kMostBytes, "a slot's offset is beyond any GPU's memory");
}

}  // namespace

Bytes StreamPlan::height() const {
  Bytes height = 0;
  for (const PlanSlot& slot : slots) height = std::max(height, slot.end());
  return height;
}

std::uint32_t StreamPlan::step_length() const {
  std::uint32_t length = 0;
  for (const PlanSection& section : sections) {
    if (section.times > 1) length = std::max(length, section.length);
  }
  return length > 0 ? length : static_cast<std::uint32_t>(slots.size());
}

void ProgramPlan::check() const {
  require(streams.size() <= kMostStreams, "a plan has at most 1024 streams");
  std::size_t all = 0;
  for (const StreamPlan& stream : streams) {
    std::size_t slots = 0;
    for (const PlanSection& section : stream.sections) {
      require(section.length > 0 && section.times > 0, "a section of a plan is empty");
      slots += section.length;
    }
    require(slots == stream.slots.size(), "the sections of a stream do not make up its slots");
    all += slots;
    require(all <= kMostSlots, "a plan has at most 262144 slots");
    for (const PlanSlot& slot : stream.slots) check_slot(slot);
  }
}

}  // namespace plimsoll
