// Describes the structures and enumerations that this library shares with Python. Python has no
// header with their layout in memory, so library.py compares each line of `plimsoll_layout` with
// its own description.
#include <cstddef>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "device/host_account.h"
#include "device/memory.h"
#include "device/pinned.h"
#include "device/runtime.h"
#include "python/export.h"
#include "values/budget.h"
#include "values/description.h"

namespace plimsoll::simulated {
namespace {

// Returns a letter for the kind of the type, and then the type's size in bytes: for example "u4"
// for an unsigned integer, "i8" for a signed one, "f8" for a floating-point number, "s32" for a
// structure.
template <typename Value>
std::string type_of() {
  const char* const kind = std::is_class_v<Value>            ? "s"
                           : std::is_floating_point_v<Value> ? "f"
                           : std::is_signed_v<Value>         ? "i"
                                                             : "u";
  return kind + std::to_string(sizeof(Value));
}

std::string line(const std::string& head, std::initializer_list<std::string> entries) {
  std::string text = head + ":";
  for (const std::string& entry : entries) text += " " + entry;
  return text + "\n";
}

std::string structure(const char* name, std::size_t size,
                      std::initializer_list<std::string> fields) {
  return line(std::string(name) + " of " + std::to_string(size) + " bytes", fields);
}

#define STRUCTURE(Type, ...) structure(#Type, sizeof(Type), {__VA_ARGS__})
#define FIELD(Type, name) \
  (#name "=" + type_of<decltype(Type::name)>() + "@" + std::to_string(offsetof(Type, name)))
#define VALUE(Type, name) (#name "=" + std::to_string(static_cast<int>(Type::name)))

}  // namespace

PLIMSOLL_EXPORT const char* plimsoll_layout() {
  static const auto* const text = new std::string(
      STRUCTURE(DeviceProperties, FIELD(DeviceProperties, multiprocessors),
                FIELD(DeviceProperties, major), FIELD(DeviceProperties, minor),
                FIELD(DeviceProperties, max_threads_per_multiprocessor),
                FIELD(DeviceProperties, bytes_per_ns), FIELD(DeviceProperties, flops_per_ns),
                FIELD(DeviceProperties, tensor_flops_per_ns),
                FIELD(DeviceProperties, copy_bytes_per_ns)) +
      STRUCTURE(Clock, FIELD(Clock, ends_ns), FIELD(Clock, compute_ends_ns),
                FIELD(Clock, no_copies_ends_ns), FIELD(Clock, busy_ns), FIELD(Clock, compute_ns),
                FIELD(Clock, no_copies_ns), FIELD(Clock, collective_ns), FIELD(Clock, network_ns),
                FIELD(Clock, host_ns), FIELD(Clock, kernels)) +
      STRUCTURE(StackTime, FIELD(StackTime, ns)) +
      STRUCTURE(Site, FIELD(Site, stack), FIELD(Site, operation), FIELD(Site, role),
                FIELD(Site, phase), FIELD(Site, grad_enabled), FIELD(Site, has_grad_fn)) +
      STRUCTURE(Assumption, FIELD(Assumption, stack), FIELD(Assumption, operation),
                FIELD(Assumption, what), FIELD(Assumption, count), FIELD(Assumption, bytes)) +
      STRUCTURE(UncertainMemory, FIELD(UncertainMemory, allocations), FIELD(UncertainMemory, frees),
                FIELD(UncertainMemory, stream), FIELD(UncertainMemory, kind),
                FIELD(UncertainMemory, bytes), FIELD(UncertainMemory, least),
                FIELD(UncertainMemory, most), FIELD(UncertainMemory, device),
                FIELD(UncertainMemory, reserved)) +
      STRUCTURE(Counter, FIELD(Counter, current), FIELD(Counter, peak), FIELD(Counter, allocated),
                FIELD(Counter, freed)) +
      STRUCTURE(PinnedStatistics, FIELD(PinnedStatistics, allocations),
                FIELD(PinnedStatistics, active_requests), FIELD(PinnedStatistics, allocated_bytes),
                FIELD(PinnedStatistics, active_bytes), FIELD(PinnedStatistics, asked_bytes)) +
      STRUCTURE(HostAccount, FIELD(HostAccount, absent), FIELD(HostAccount, most_absent),
                FIELD(HostAccount, extra)) +
      line("Role", {VALUE(Role, output), VALUE(Role, temporary), VALUE(Role, workspace),
                    VALUE(Role, input), VALUE(Role, copy)}) +
      line("Phase", {VALUE(Phase, forward), VALUE(Phase, backward)}) +
      line("Values", {VALUE(Values, automatic), VALUE(Values, real), VALUE(Values, none)}) +
      line("Unknown", {VALUE(Unknown, balanced), VALUE(Unknown, most), VALUE(Unknown, least)}));
  return text->c_str();
}

}  // namespace plimsoll::simulated
