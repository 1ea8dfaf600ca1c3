#include "plimsoll/replay/recorded_run.h"

namespace plimsoll {

bool RecordedRun::gave_back() const {
  if (by_ != RecordedAllocator::elastic) return by_ == RecordedAllocator::native;
  Bytes released = 0;
  Bytes taken = 0;
  for (const TraceEvent& event : events_) {
    if (is_release(event)) released += event.size;
    if (is_growth(event)) taken += event.size;
  }
  return released > taken;
}

std::optional<PoolId> RecordedRun::emptied_pool() const {
  std::optional<PoolId> only;
  bool several = false;
  for_each_release([&](const TraceEvent& event) {
    several = several || (only && *only != event.pool);
    only = event.pool;
  });
  return several ? std::nullopt : only;
}

void RecordedRun::compare(const TraceEvent* request, std::uint64_t index, const History& history,
                          std::optional<Difference>& first) const {
  std::size_t done = 0;
  const auto next_replayed = [&]() -> const TraceEvent* {
    while (done < history.size() && history[done].action == Action::free_completed) ++done;
    return done < history.size() ? &history[done++] : nullptr;
  };
  const auto compare_event = [&](const TraceEvent& recorded, std::uint64_t event) {
    const TraceEvent* const replayed = next_replayed();
    const bool same = replayed != nullptr && replayed->action == recorded.action &&
                      replayed->size == recorded.size &&
                      (replayed->address == recorded.address || recorded.action == Action::oom);
    if (!same && !first) {
      first = Difference{event, recorded, replayed ? std::optional(*replayed) : std::nullopt};
    }
  };
  std::uint64_t event = start_;
  for (const TraceEvent& recorded : events_) {
    if (recorded.action != Action::free_completed) compare_event(recorded, event);
    ++event;
  }
  if (request != nullptr) compare_event(*request, index);
  if (const TraceEvent* const more = next_replayed(); more != nullptr && !first) {
    first = Difference{index, std::nullopt, *more};
  }
}

}  // namespace plimsoll
