#include "plimsoll/allocator/event_log.h"

namespace plimsoll {

void EventLog::tell(Action action, Address address, Bytes size, StreamId stream, PoolId pool,
                    std::uint32_t context, Bytes shared) {
  if (action == Action::alloc && shared == 0 && driver_.spills()) {
    shared = driver_.shared_in(address, size);
  }
  const TraceEvent event{
      action, address, size, stream, pool, driver_.now_us(), context_ != 0 ? context_ : context,
      shared};
  if (history_.is_recording()) history_.add(event);
  if (Observer* const observer = observer_.load(std::memory_order_acquire)) {
    observer->observe(event);
  }
}

}  // namespace plimsoll
