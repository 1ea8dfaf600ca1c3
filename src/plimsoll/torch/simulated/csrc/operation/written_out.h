// Hand-written kernels for operations of aten, and the operations of plimsoll's own namespace.
#pragma once

#include <torch/library.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll::simulated {

// The hand-written kernels for aten's operations under one dispatch key.
class WrittenOut {
 public:
  explicit WrittenOut(c10::DispatchKey key)
      : aten_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}

  // Registers a kernel for an operation, named for example "set_.source_Tensor".
  template <typename Kernel>
  void add(const std::string& name, Kernel&& kernel) {
    names_.insert("aten::" + name);
    aten_.impl(name.c_str(), std::forward<Kernel>(kernel));
  }
  [[nodiscard]] bool has(const std::string& full) const { return names_.count(full) != 0; }

 private:
  std::set<std::string> names_;
  torch::Library aten_;
};

// Returns the torch library "plimsoll": operations for plimsoll's Python code.
inline torch::Library& own_operations() {
  static auto* const own =
      new torch::Library(torch::Library::DEF, "plimsoll", std::nullopt, __FILE__, __LINE__);
  return *own;
}
// Defines an operation of plimsoll, with one kernel for all devices.
template <typename Kernel>
void define(const char* schema, Kernel&& kernel) {
  own_operations().def(schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                               std::forward<Kernel>(kernel)));
}

// Replaces an operation's kernel for the rest of the process.
inline void put_kernel(const c10::OperatorName& name, c10::DispatchKey key,
                       c10::KernelFunction kernel) {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>;
  handles->push_back(c10::Dispatcher::singleton().registerImpl(name, key, std::move(kernel),
                                                               std::nullopt, nullptr, "plimsoll"));
}

// Returns the full name, such as "aten::add.out".
inline std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace plimsoll::simulated
