#include "plimsoll/allocator/placement.h"

namespace plimsoll {
namespace {

thread_local std::optional<Placement> placement_of_this_thread;

}  // namespace

std::atomic<int> ThisThread::placed_threads_{0};

void ThisThread::set_placement(std::optional<Placement> placement) {
  const int change = static_cast<int>(placement.has_value()) -
                     static_cast<int>(placement_of_this_thread.has_value());
  placement_of_this_thread = placement;
  placed_threads_.fetch_add(change, std::memory_order_relaxed);
}

Placement ThisThread::placement() { return placement_of_this_thread.value_or(Placement{}); }

}  // namespace plimsoll
