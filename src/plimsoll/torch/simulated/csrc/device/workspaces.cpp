#include "device/workspaces.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "device/memory.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

// cuBLAS handles are handed to threads from a pool, and each (handle, stream) keeps a workspace.
class HandlePool {
 public:
  int take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return made_++;
    const int handle = free_.back();
    free_.pop_back();
    return handle;
  }
  void give_back(int handle) {
    const std::lock_guard lock(mutex_);
    free_.push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::vector<int> free_;
  int made_ = 0;
};

HandlePool& handle_pool() {
  static auto* const pool = new HandlePool;
  return *pool;
}

struct ThreadHandles {
  std::map<c10::DeviceIndex, int> handles;
  int of(c10::DeviceIndex device) {
    const auto [place, is_new] = handles.try_emplace(device, 0);
    if (is_new) place->second = handle_pool().take();
    return place->second;
  }
  ~ThreadHandles() {
    for (const auto& [device, handle] : handles) handle_pool().give_back(handle);
  }
};
thread_local ThreadHandles thread_handles;

using WorkspaceKey = std::tuple<c10::DeviceIndex, int, c10::StreamId>;

// cuBLAS's and cublasLt's, as PyTorch keeps them: one map of each, which go one after the other.
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
  const WorkspaceKey key{device, thread_handles.of(device), runtime().current_stream(device)};
  if (is_kept && workspaces().has(is_lt, key)) return;
  const DeviceScope on(device);
  at::DataPtr memory = take_memory(bytes);
  if (is_kept) workspaces().keep(is_lt, key, std::move(memory));
}

void clear_workspaces() { workspaces().clear(); }

}  // namespace plimsoll::simulated
