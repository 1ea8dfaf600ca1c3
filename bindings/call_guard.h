// Guards for the functions that Python calls. A function holds a guard while it calls an engine.
#pragma once

#include <nanobind/nanobind.h>

#include <mutex>
#include <optional>
#include <utility>

#include "plimsoll/engine/engine.h"

namespace plimsoll::python {

// Releases the interpreter's lock while the guard exists, because an engine's call may wait for a
// device or for other threads. Keeps the lock if `excludes_calls` is true. In this case the engine
// serves a simulated GPU. The engines of all simulated GPUs share one mutex; each call locks it.
class WaitGuard {
 public:
  explicit WaitGuard(const Engine& engine) {
    if (!engine.excludes_calls()) released_.emplace();
  }

 private:
  std::optional<nanobind::gil_scoped_release> released_;
};

class CallGuard {
 public:
  explicit CallGuard(const Engine& engine) : wait_(engine), exclusive_(engine.exclude_calls()) {}

 private:
  WaitGuard wait_;
  std::unique_lock<std::recursive_mutex> exclusive_;
};

template <typename Result, typename... Arguments>
auto guarded(Result (*function)(Engine&, Arguments...)) {
  return [function](Engine& engine, Arguments... arguments) {
    const CallGuard guard(engine);
    return function(engine, std::move(arguments)...);
  };
}

}  // namespace plimsoll::python
