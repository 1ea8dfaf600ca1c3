// Makes a plan of a program's memory from a recorded history that begins with its first request.
//
// A block whose free waits for other streams is not planned, nor are private pools: graphs remember
// addresses.
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
  // Throws ReplayError if an event cannot follow those before it, or there are more large requests
  // than a plan can have.
  void feed(const EventSpan& events);
  // The streams of which no large request was seen have no plan.
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

  std::uint64_t index_ = 0;  // of the event at hand
  Address freed_ = 0;        // by the event before; the one at hand says how that ends
  std::size_t large_ = 0;    // requests
  std::unordered_map<Address, Block> blocks_;
  std::unordered_map<StreamId, std::uint32_t> numbers_;  // of streams
  std::vector<std::vector<TimedRequest>> requests_;      // of each stream; end 0: not freed yet
};

}  // namespace plimsoll
