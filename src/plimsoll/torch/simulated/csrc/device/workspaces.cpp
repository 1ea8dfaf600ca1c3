#include "device/workspaces.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "device/library_handles.h"
#include "device/memory.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using WorkspaceKey = std::tuple<c10::DeviceIndex, int, c10::StreamId>;

// Keeps the workspaces of cuBLAS and cublasLt in one map for each library. Like PyTorch, `clear`
// frees all workspaces of cuBLAS before those of cublasLt.
class Workspaces {
 public:
  bool has(bool lt, const WorkspaceKey& key) {
    const std::lock_guard lock(mutex_);
    return of(lt).count(key) != 0;
  }
  void keep(bool lt, const WorkspaceKey& key, at::DataPtr memory) {
    const std::lock_guard lock(mutex_);
    of(lt).emplace(key, std::move(memory));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (auto& all : all_) all.clear();
  }

 private:
  std::map<WorkspaceKey, at::DataPtr>& of(bool lt) { return all_[lt ? 1 : 0]; }

  std::mutex mutex_;
  std::array<std::map<WorkspaceKey, at::DataPtr>, 2> all_;
};

Workspaces& workspaces() {
  static auto* const all = new Workspaces;
  return *all;
}

}  // namespace

void take_workspace(c10::DeviceIndex device, bool is_lt, bool is_kept, std::size_t bytes) {
  const WorkspaceKey key{device, blas_handle(device), runtime().current_stream(device)};
  if (is_kept && workspaces().has(is_lt, key)) return;
  const DeviceScope on(device);
  at::DataPtr memory = take_memory(bytes);
  if (is_kept) workspaces().keep(is_lt, key, std::move(memory));
}

void clear_workspaces() { workspaces().clear(); }

}  // namespace plimsoll::simulated
