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

// PyTorch hands a device's cuBLAS handles to threads from a pool: the main thread has one, and the
// thread of the backward pass another. Each (handle, stream) keeps a workspace.
class HandlePool {
 public:
  int take(c10::DeviceIndex device) {
    const auto [handle, is_made] = claim(device);
    if (is_made) return handle;
    try {
      runtime().load_again(device, handle == 0 ? Library::blas : Library::blas_handle);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      handles_[device].unmade.push_back(handle);
      throw;
    }
    return handle;
  }
  void give_back(c10::DeviceIndex device, int handle) {
    const std::lock_guard lock(mutex_);
    handles_[device].free.push_back(handle);
  }

 private:
  struct Handles {
    std::vector<int> free, unmade;  // `unmade`: the card had no room for them
    int count = 0;
  };

  // A handle's number, and whether the card has its memory already.
  std::pair<int, bool> claim(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    Handles& of = handles_[device];
    for (std::vector<int>* const from : {&of.free, &of.unmade}) {
      if (from->empty()) continue;
      const int handle = from->back();
      from->pop_back();
      return {handle, from == &of.free};
    }
    return {of.count++, false};
  }

  std::mutex mutex_;
  std::map<c10::DeviceIndex, Handles> handles_;
};

HandlePool& handle_pool() {
  static auto* const pool = new HandlePool;
  return *pool;
}

struct ThreadHandles {
  std::map<c10::DeviceIndex, int> handles;
  int of(c10::DeviceIndex device) {
    const auto place = handles.find(device);
    if (place != handles.end()) return place->second;
    return handles[device] = handle_pool().take(device);  // may raise: then the thread has none
  }
  ~ThreadHandles() {
    for (const auto& [device, handle] : handles) handle_pool().give_back(device, handle);
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
