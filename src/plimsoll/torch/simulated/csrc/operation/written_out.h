// Kernels that do more than fill new tensors, and so are written out.
#pragma once

#include <torch/library.h>

#include <set>
#include <string>
#include <utility>

namespace plimsoll::simulated {

class WrittenOut {
 public:
  // A kernel of aten's, for CUDA; "set_.source_Tensor".
  template <typename Kernel>
  void add(const std::string& name, Kernel&& kernel) {
    names_.insert("aten::" + name);
    aten_.impl(name.c_str(), std::forward<Kernel>(kernel));
  }
  [[nodiscard]] bool has(const std::string& full) const { return names_.count(full) != 0; }
  // Operations of plimsoll's own, which Python calls.
  torch::Library& own() { return own_; }

 private:
  std::set<std::string> names_;
  torch::Library aten_{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  torch::Library own_{torch::Library::DEF, "plimsoll", std::nullopt, __FILE__, __LINE__};
};

}  // namespace plimsoll::simulated
