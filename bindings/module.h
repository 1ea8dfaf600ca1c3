// The Python module's parts. Bindings convert types and nothing else.
#pragma once

#include <nanobind/nanobind.h>

namespace plimsoll::python {

void bind_driver(nanobind::module_& module);
void bind_simulated(nanobind::module_& module);
void bind_events(nanobind::module_& module);
void bind_formats(nanobind::module_& module);
void bind_tiers(nanobind::module_& module);
void bind_allocator(nanobind::module_& module);
void bind_replay(nanobind::module_& module);
void bind_stacks(nanobind::module_& module);
void bind_event_buffer(nanobind::module_& module);
void bind_c_api(nanobind::module_& module);
void bind_live(nanobind::module_& module);
void bind_live_api(nanobind::module_& module);
void bind_pluggable(nanobind::module_& module);

}  // namespace plimsoll::python
