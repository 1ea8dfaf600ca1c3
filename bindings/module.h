// Declares the functions that build the Python module, one for each part. Bindings convert types
// and do nothing else.
#pragma once

#include <nanobind/nanobind.h>

namespace plimsoll {
class Engine;
}

namespace plimsoll::python {

void bind_driver(nanobind::module_& module);
void bind_simulated(nanobind::module_& module);
void bind_events(nanobind::module_& module);
void bind_formats(nanobind::module_& module);
void bind_allocator(nanobind::module_& module);
void bind_replay(nanobind::module_& module);
void bind_plans(nanobind::module_& module);
void bind_stacks(nanobind::module_& module);
void bind_event_buffer(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_tiers(nanobind::class_<Engine>& engine_class);  // bind_engine calls it
void bind_engine_api(nanobind::module_& module);
void bind_device_api(nanobind::module_& module);
void bind_cuda_calls(nanobind::module_& module);
void bind_cudart_calls(nanobind::module_& module);
void bind_redirected_imports(nanobind::module_& module);
void bind_pluggable(nanobind::module_& module);

}  // namespace plimsoll::python
