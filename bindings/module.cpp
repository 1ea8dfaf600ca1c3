#include "module.h"

NB_MODULE(_core, module) {
  // Objects that a script still holds when the interpreter ends are not leaks, so nanobind must not
  // warn of them.
  nanobind::set_leak_warnings(false);
  module.doc() = "The engine of plimsoll: drivers, allocators, recordings and replay, in C++.";
  plimsoll::python::bind_driver(module);
  plimsoll::python::bind_simulated(module);
  plimsoll::python::bind_events(module);
  plimsoll::python::bind_formats(module);
  plimsoll::python::bind_allocator(module);
  plimsoll::python::bind_plans(module);
  plimsoll::python::bind_replay(module);
  plimsoll::python::bind_stacks(module);
  plimsoll::python::bind_event_buffer(module);
  plimsoll::python::bind_engine(module);
  plimsoll::python::bind_engine_api(module);
  plimsoll::python::bind_device_api(module);
  plimsoll::python::bind_cuda_calls(module);
  plimsoll::python::bind_cudart_calls(module);
  plimsoll::python::bind_redirected_imports(module);
  plimsoll::python::bind_pluggable(module);
}
