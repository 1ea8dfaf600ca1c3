// Makes a plan of a program's memory from a recorded history. The history begins with the
// first request of the program.
//
// Blocks whose free waits for other streams are not planned. Blocks of private pools are not
// planned either, because graphs remember their addresses.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plimsoll/planning/program_plan.h"
#include "plimsoll/planning/steps.h"
#include "plimsoll/replay/events.h"

namespace plimsoll {

class PlanMaker {
 public:
  // Reads events. Throws ReplayError if an event cannot follow those before it, or if there are
  // more large requests than a plan can have.
  void feed(const EventSpan& events);
  // Returns the plan of all streams that made a large request.
  [[nodiscard]] ProgramPlan plan() const;

 private:
  struct Block {
    std::uint32_t stream = 0;
    std::uint32_t request = 0;
    bool is_large = false;
  };

  void step(const TraceEvent& event);
  void request(const TraceEvent& event);
  void note_shared(Address address);
  void complete_free(Address address);

  std::uint64_t index_ = 0;  // number of the current event
  Address freed_ = 0;        // the previous event's address if that event is free_requested; else 0
  std::size_t large_ = 0;    // number of large requests so far
  std::unordered_map<Address, Block> blocks_;
  std::unordered_map<StreamId, std::uint32_t> numbers_;  // the index of each stream in `requests_`
  // One list for each stream. The `end` of a request is 0 until its block is freed.
  std::vector<std::vector<TimedRequest>> requests_;
};

}  // namespace plimsoll
