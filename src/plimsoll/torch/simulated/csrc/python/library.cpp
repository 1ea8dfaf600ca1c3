// The library's C interface. Python calls it through ctypes.
#include <ATen/Context.h>
#include <torch/csrc/autograd/engine.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "device/generator.h"
#include "device/guard.h"
#include "device/host_account.h"
#include "device/host_times.h"
#include "device/memory.h"
#include "device/pinned.h"
#include "device/profiler.h"
#include "device/runtime.h"
#include "device/virtual.h"
#include "device/workspaces.h"
#include "execute/registration.h"
#include "python/export.h"
#include "rules/blas.h"
#include "rules/convolution_workspaces.h"
#include "rules/measured_convolutions.h"
#include "values/budget.h"
#include "values/captured_writes.h"
#include "values/description.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

// Returns whether threads of the autograd engine exist. PyTorch gives these threads names that
// begin with "pt_autograd".
bool has_autograd_threads() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name.starts_with("pt_autograd")) return true;
  }
  return false;
}

}  // namespace

PLIMSOLL_EXPORT int plimsoll_start(const plimsoll_engine_api* engine_api,
                                   const plimsoll_device_api* device_api,
                                   const plimsoll_recorder_api* recorder_api, int torch_version,
                                   int device_count, plimsoll_engine* const* engines,
                                   plimsoll_device* const* gpus,
                                   const DeviceProperties* properties) {
  if (engine_api->version != PLIMSOLL_ENGINE_API_VERSION ||
      device_api->version != PLIMSOLL_DEVICE_API_VERSION ||
      recorder_api->version != PLIMSOLL_RECORDER_API_VERSION) {
    return 1;
  }
  auto& state = runtime();
  state.engines = engine_api;
  state.gpus = device_api;
  state.recorder = recorder_api;
  state.torch_version = torch_version;
  for (int i = 0; i < device_count; ++i) {
    auto& device = state.devices.emplace_back();
    device.engine = engines[i];
    device.gpu = gpus[i];
    device.properties = properties[i];
  }
  install_guard();
  return 0;
}

// Sets the Python functions that the library calls; they are never released.
PLIMSOLL_EXPORT void plimsoll_set_callbacks(void* first_use, void* load, void* out_of_memory,
                                            void* is_in_open_loop, void* is_tested,
                                            void* waits_for_ever) {
  Callbacks& callbacks = runtime().callbacks;
  callbacks.first_use = Callback(first_use);
  callbacks.load = Callback(load);
  callbacks.out_of_memory = Callback(out_of_memory);
  callbacks.is_in_open_loop = Callback(is_in_open_loop);
  callbacks.is_tested = Callback(is_tested);
  callbacks.waits_for_ever = Callback(waits_for_ever);
}

// Sets the Python function that exchanges bytes between ranks; it is never released.
PLIMSOLL_EXPORT void plimsoll_set_exchange(void* exchange) {
  runtime().callbacks.exchange = Callback(exchange);
}

// Sets how the program is ended: `exception` is raised in `thread`. The exception is a Python
// object that is never released.
PLIMSOLL_EXPORT void plimsoll_set_ending(unsigned long thread, void* exception) {
  runtime().ending = {thread, exception};
}

PLIMSOLL_EXPORT void plimsoll_bound_events(uint64_t most, void* reached) {
  runtime().callbacks.bound_reached = Callback(reached);
  runtime().most_events = most;
}

// Sets which values are computed and how unknown values are chosen. `values` is a number of the
// enumeration Values, and `unknown` is a number of the enumeration Unknown.
PLIMSOLL_EXPORT void plimsoll_set_values(int values, int unknown, uint64_t seed) {
  Budget::instance().set(static_cast<Values>(values));
  set_unknown(static_cast<Unknown>(unknown), seed);
}

PLIMSOLL_EXPORT void plimsoll_replace_engine(int device, plimsoll_engine* engine) {
  runtime().devices[static_cast<std::size_t>(device)].engine = engine;
}

// Registers the simulated kernels. Python calls it once PyTorch is loaded.
PLIMSOLL_EXPORT void plimsoll_install() {
  install_guard();
  register_kernels();
  install_profiler();
}

// Makes plimsoll also simulate the operations that were registered after plimsoll_install ran.
// Python calls this function after it loads a library that may register operations.
PLIMSOLL_EXPORT void plimsoll_take_over_operators() { take_over_new_operators(); }

PLIMSOLL_EXPORT void plimsoll_initialize() { runtime().initialize(); }
PLIMSOLL_EXPORT void plimsoll_use(int device) {
  if (!runtime().is_bad_fork) runtime().use(static_cast<c10::DeviceIndex>(device));
}
PLIMSOLL_EXPORT int plimsoll_is_bad_fork() { return runtime().is_bad_fork ? 1 : 0; }
PLIMSOLL_EXPORT uint64_t plimsoll_set_capturing(int device, int on) {
  return runtime().set_capturing(static_cast<c10::DeviceIndex>(device), on != 0);
}
PLIMSOLL_EXPORT void plimsoll_replay(uint64_t capture) {
  runtime().launch_captured(capture);
  replay_writes(capture);
}
PLIMSOLL_EXPORT uint64_t plimsoll_captured_nodes(uint64_t capture) {
  return runtime().captured_nodes(capture);
}
PLIMSOLL_EXPORT void plimsoll_forget_capture(uint64_t capture) {
  runtime().forget_capture(capture);
  forget_writes(capture);
}

// Stops autograd's threads before the interpreter ends. The process would crash if a thread
// released a Python object, or took the interpreter's lock, after the interpreter has ended.
// PyTorch does not join these threads, so this function waits for them.
PLIMSOLL_EXPORT void plimsoll_end() {
  torch::autograd::Engine::get_default_engine().stop();
  for (int i = 0; i < 1000 && has_autograd_threads(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  runtime().is_over = true;
}

PLIMSOLL_EXPORT void plimsoll_record(int sites, int stacks) {
  runtime().record_sites = sites != 0;
  runtime().record_stacks = stacks != 0;
}

PLIMSOLL_EXPORT void plimsoll_keep_history(int keeps) { runtime().keeps_history = keeps != 0; }

PLIMSOLL_EXPORT void plimsoll_keep_contents(int keeps) {
  if (keeps != 0) {
    WithContentsScope::enter();
  } else {
    WithContentsScope::leave();
  }
}

PLIMSOLL_EXPORT int plimsoll_current_device() { return runtime().current_device(); }
PLIMSOLL_EXPORT int plimsoll_set_device(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= runtime().devices.size()) return 1;
  runtime().set_device(static_cast<c10::DeviceIndex>(index));
  return 0;
}
// Returns CUDA's error for a missing device. The text stays valid until the same thread calls this
// function again.
PLIMSOLL_EXPORT const char* plimsoll_no_such_device(int index) {
  thread_local std::string text;
  text = runtime().no_such_device(index);
  return text.c_str();
}
PLIMSOLL_EXPORT int64_t plimsoll_current_stream(int index) {
  return runtime().current_stream(static_cast<c10::DeviceIndex>(index));
}
PLIMSOLL_EXPORT void plimsoll_set_stream(int index, int64_t stream) {
  runtime().pass_host_time(static_cast<c10::DeviceIndex>(index), kSetStreamHostNs);
  runtime().set_stream(static_cast<c10::DeviceIndex>(index), stream);
}
PLIMSOLL_EXPORT void plimsoll_default_generators(int on) { make_next_generator_default(on != 0); }
PLIMSOLL_EXPORT void plimsoll_set_search(int most_plans, int empties_cache) {
  search_settings() = {most_plans, empties_cache != 0};
}
PLIMSOLL_EXPORT void plimsoll_forget_measured_workspaces() { forget_measured_workspaces(); }
PLIMSOLL_EXPORT void plimsoll_set_measured_workspaces(int device, const char* words, int pass,
                                                      int64_t first, int64_t largest, int64_t least,
                                                      int64_t middle, int64_t most) {
  set_measured_workspaces(static_cast<c10::DeviceIndex>(device), words, static_cast<Pass>(pass),
                          {first, largest, least, middle, most});
}
PLIMSOLL_EXPORT const char* plimsoll_convolutions() {
  thread_local std::string lines;
  lines = noted_convolutions();
  return lines.c_str();
}
PLIMSOLL_EXPORT void plimsoll_set_blas_workspace_bytes(int lt, int64_t bytes) {
  set_blas_workspace_bytes(lt != 0, bytes);
}
PLIMSOLL_EXPORT uint64_t plimsoll_blas_workspace_bytes(int lt) {
  return current_blas_workspace_bytes(lt != 0);
}
PLIMSOLL_EXPORT void plimsoll_clear_blas_workspaces() { clear_workspaces(); }

PLIMSOLL_EXPORT void plimsoll_account_host_in(HostAccount* account) { account_host_in(account); }
PLIMSOLL_EXPORT void plimsoll_read_host(HostAccount* copy) { *copy = read_host_account(); }
PLIMSOLL_EXPORT uint64_t plimsoll_pinned_written_bytes() { return pinned_written_bytes(); }
PLIMSOLL_EXPORT uint64_t plimsoll_registered_written_bytes() { return registered_written_bytes(); }

PLIMSOLL_EXPORT void plimsoll_pinned_statistics(PinnedStatistics* statistics) {
  *statistics = pinned_statistics();
}
PLIMSOLL_EXPORT void plimsoll_reset_pinned_statistics(int peaks) {
  reset_pinned_statistics(peaks != 0);
}
PLIMSOLL_EXPORT void plimsoll_limit_pinned(size_t rounded, size_t cached) {
  limit_pinned({rounded, cached});
}
PLIMSOLL_EXPORT void plimsoll_empty_pinned_pool() { empty_pinned_pool(); }
PLIMSOLL_EXPORT int plimsoll_pin(void* address, size_t size) { return pin(address, size); }
PLIMSOLL_EXPORT int plimsoll_unpin(void* address) { return unpin(address); }

PLIMSOLL_EXPORT size_t plimsoll_copy_sites(Site* to, size_t most) {
  return runtime().copy_sites(to, most);
}
PLIMSOLL_EXPORT size_t plimsoll_copy_assumptions(Assumption* to, size_t most) {
  return runtime().copy_assumptions(to, most);
}
PLIMSOLL_EXPORT size_t plimsoll_copy_uncertain_memory(UncertainMemory* to, size_t most) {
  return runtime().copy_uncertain_memory(to, most);
}
PLIMSOLL_EXPORT size_t plimsoll_copy_stack_times(int device, StackTime* to, size_t most) {
  return runtime().copy_stack_times(static_cast<c10::DeviceIndex>(device), to, most);
}
PLIMSOLL_EXPORT void plimsoll_clock(int device, Clock* clock) {
  *clock = runtime().clock(static_cast<c10::DeviceIndex>(device));
}
// Returns why a device failed, or null if no device failed. After a failure, writes the number of
// the failure's call stack to `stack`. The text stays valid until the same thread calls this
// function again.
PLIMSOLL_EXPORT const char* plimsoll_failure(uint32_t* stack) {
  thread_local std::string why;
  const auto failure = runtime().failure();
  if (!failure) return nullptr;
  why = failure->why;
  *stack = failure->stack;
  return why.c_str();
}
PLIMSOLL_EXPORT const char* plimsoll_name(uint32_t number) {
  return runtime().name_at(number).c_str();
}

}  // namespace plimsoll::simulated
