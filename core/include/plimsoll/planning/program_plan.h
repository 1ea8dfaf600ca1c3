// A plan of a program's memory: where each large request of each stream lies, known before the
// program runs.
//
// Each stream has one area, in which offsets begin at 0. It also has one slot for each of its large
// requests, in the order in which the program makes them. Slots are grouped in sections. A section
// that the program repeated several times in a row, such as the steps of a training loop, is in the
// plan once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

// The place of one request. If the steps of a program ask for different sizes, `size` is the
// largest of them and `least` the smallest.
struct PlanSlot {
  // Marks a request that lies outside the area, wherever the allocator has room.
  static constexpr Bytes kElsewhere = std::numeric_limits<Bytes>::max();

  Bytes size = 0;
  Bytes least = 0;
  Bytes offset = 0;  // position in the area
  [[nodiscard]] bool is_elsewhere() const { return offset == kElsewhere; }
  [[nodiscard]] Bytes end() const { return is_elsewhere() ? 0 : offset + size; }
  [[nodiscard]] bool serves(Bytes wanted) const { return least <= wanted && wanted <= size; }
  [[nodiscard]] bool operator==(const PlanSlot&) const = default;
};

struct PlanSection {
  std::uint32_t length = 0;  // number of slots
  std::uint32_t times = 1;   // how often in a row the program goes through the section
  [[nodiscard]] bool operator==(const PlanSection&) const = default;
};

struct StreamPlan {
  std::vector<PlanSection> sections;
  std::vector<PlanSlot> slots;  // of all sections, in order
  Bytes outside = 0;            // the most bytes that are live at one time outside the area

  // Returns the size of the area in bytes.
  [[nodiscard]] Bytes height() const;
  // Returns the size of the top part of an area of this height. The planner prefers packings whose
  // blocks use the top only for a short time. At other times, the memory there serves other
  // requests.
  [[nodiscard]] static Bytes top_of(Bytes height) {
    constexpr Bytes kPart = 64;
    constexpr Bytes kMost = 64 * kMiB;
    return std::min(height / kPart, kMost);
  }
  // Returns the number of slots of the longest section that repeats. If none repeats, returns the
  // number of all slots.
  [[nodiscard]] std::uint32_t step_length() const;
  [[nodiscard]] bool operator==(const StreamPlan&) const = default;
};

// The streams of one process on one GPU, in the order of their first large requests.
struct ProgramPlan {
  static constexpr Bytes kMostBytes = Bytes{1} << 46;  // the largest area
  // The most slots of all streams together.
  static constexpr std::size_t kMostSlots = std::size_t{1} << 18;
  static constexpr std::size_t kMostStreams = 1024;

  std::vector<StreamPlan> streams;

  // Requests above this size are planned.
  static constexpr Bytes kSmallRequest = kMiB;
  static constexpr Bytes kAlignment = 512;

  // Throws std::invalid_argument if the lengths of the sections do not add up to the number of
  // slots, or if a slot has an impossible size or offset. The message is one line.
  void check() const;
  [[nodiscard]] bool operator==(const ProgramPlan&) const = default;
};

}  // namespace plimsoll
