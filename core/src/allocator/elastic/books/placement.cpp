#include "plimsoll/allocator/elastic/books/placement.h"

namespace plimsoll {
namespace {

// The calling thread's placement. Its destructor ends the placement when the thread ends.
struct OfThisThread {
  ~OfThisThread() { ThisThread::set_placement(std::nullopt); }
  std::optional<Placement> placement;
};

thread_local OfThisThread of_this_thread;

}  // namespace

std::atomic<int> ThisThread::placed_threads_{0};

void ThisThread::set_placement(std::optional<Placement> placement) {
  const int change = static_cast<int>(placement.has_value()) -
                     static_cast<int>(of_this_thread.placement.has_value());
  of_this_thread.placement = placement;
  placed_threads_.fetch_add(change, std::memory_order_relaxed);
}

Placement ThisThread::placement() { return of_this_thread.placement.value_or(Placement{}); }

bool ThisThread::is_placed() { return of_this_thread.placement.has_value(); }

}  // namespace plimsoll
