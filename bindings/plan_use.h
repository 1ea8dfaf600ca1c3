// Reports to Python how many bytes an allocator placed where a plan says.
#pragma once

#include <nanobind/nanobind.h>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll::python {

// Each tuple describes one stream: its requests, their bytes, placed bytes (those that lie where
// the stream's plan says), and None. If the allocator dropped the plan, the last value is a tuple:
// the number of requests before the drop, and the bytes and placed bytes of the step that caused
// it.
inline constexpr const char* kPlanUseSignature =
    "def plan_use(self) -> list[tuple[int, int, int, tuple[int, int, int] | None]]";

inline nanobind::list plan_uses(const ElasticAllocator& allocator) {
  nanobind::list uses;
  for (const PlanUse& use : allocator.plan_use()) {
    nanobind::object dropped = nanobind::none();
    if (use.dropped) {
      dropped =
          nanobind::make_tuple(use.dropped->request, use.dropped->bytes, use.dropped->placed_bytes);
    }
    uses.append(nanobind::make_tuple(use.requests, use.bytes, use.placed_bytes, dropped));
  }
  return uses;
}

}  // namespace plimsoll::python
