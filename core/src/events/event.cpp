#include "plimsoll/events/event.h"

#include <array>

namespace plimsoll {
namespace {

constexpr std::array<std::string_view, kActionCount> kNames{
    "alloc",         "free_requested", "free_completed",
    "segment_alloc", "segment_free",   "segment_map",
    "segment_unmap", "snapshot",       "oom"};

}  // namespace

std::string_view to_string(Action action) { return kNames[static_cast<std::size_t>(action)]; }

std::optional<Action> action_from(std::string_view name) {
  for (std::size_t code = 0; code < kNames.size(); ++code) {
    if (kNames[code] == name) return static_cast<Action>(code);
  }
  return std::nullopt;
}

}  // namespace plimsoll
