#include "plimsoll/replay/plan_maker.h"

#include <string>
#include <utility>

#include "plimsoll/planning/planner.h"

namespace plimsoll {

void PlanMaker::feed(const EventSpan& events) {
  for (std::size_t i = 0; i < events.count(); ++i, ++index_) step(events[i]);
}

void PlanMaker::step(const TraceEvent& event) {
  const Address freed = std::exchange(freed_, 0);
  const bool completes = event.action == Action::free_completed;
  if (freed != 0 && !(completes && event.address == freed)) note_shared(freed);
  if (completes) return complete_free(event.address);
  if (event.action == Action::free_requested) freed_ = event.address;
  if (event.action == Action::alloc) return request(event);
}

// Notes that another stream uses the block. In the history, the completion of this block's free
// does not directly follow the request for the free. This shows that the free had to wait for a
// stream.
void PlanMaker::note_shared(Address address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || !found->second.is_large) return;
  requests_[found->second.stream][found->second.request].is_shared = true;
}

void PlanMaker::request(const TraceEvent& event) {
  if (event.size == 0 || event.size > ProgramPlan::kMostBytes) {
    throw ReplayError("event " + std::to_string(index_) + " asks for " +
                      std::to_string(event.size) + " bytes");
  }
  const auto [entry, is_new] = blocks_.try_emplace(event.address);
  if (!is_new) {
    throw ReplayError("event " + std::to_string(index_) + " allocates " +
                      format_address(event.address) + ", which is allocated already");
  }
  const Bytes size = round_up(event.size, ProgramPlan::kAlignment);
  if (size <= ProgramPlan::kSmallRequest || !event.pool.is_default()) return;
  if (++large_ > ProgramPlan::kMostSlots) {
    throw ReplayError("the recording has more than " + std::to_string(ProgramPlan::kMostSlots) +
                      " requests above 1 MiB, which is the most that a plan can have");
  }
  const auto number = static_cast<std::uint32_t>(numbers_.size());
  const auto [stream, is_first] = numbers_.try_emplace(event.stream, number);
  if (is_first) requests_.emplace_back();
  std::vector<TimedRequest>& requests = requests_[stream->second];
  entry->second = {stream->second, static_cast<std::uint32_t>(requests.size()), true};
  requests.push_back({size, 0, false});
}

// Ends the block's lifetime. Ignores frees of blocks that were live before the history began.
void PlanMaker::complete_free(Address address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  const Block block = found->second;
  blocks_.erase(found);
  if (!block.is_large) return;
  std::vector<TimedRequest>& requests = requests_[block.stream];
  requests[block.request].end = static_cast<std::uint32_t>(requests.size());
}

ProgramPlan PlanMaker::plan() const {
  ProgramPlan plan;
  for (std::vector<TimedRequest> requests : requests_) {
    const auto count = static_cast<std::uint32_t>(requests.size());
    for (TimedRequest& request : requests) {
      if (request.end == 0) request.end = count;
    }
    plan.streams.push_back(plan_stream(requests));
  }
  return plan;
}

}  // namespace plimsoll
