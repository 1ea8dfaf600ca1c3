#include "blas.h"

#include <c10/util/env.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

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

// CUBLAS_WORKSPACE_CONFIG holds pairs of KiB and counts, ":4096:2:16:8"; without any it is ignored.
std::optional<std::size_t> configured_workspace() {
  const char* const text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  if (text == nullptr) return std::nullopt;
  std::size_t total = 0;
  std::size_t kib = 0;
  std::size_t count = 0;
  const char* at = text;
  int used = 0;
  while (std::sscanf(at, ":%zu:%zu%n", &kib, &count, &used) == 2) {
    total += kib * 1024 * count;
    at += used;
  }
  if (at == text) return std::nullopt;
  return total;
}

// Sizes that the program set, cuBLAS's and cublasLt's; negative where it set none.
std::atomic<std::int64_t> set_bytes[2] = {-1, -1};

std::size_t blas_workspace_bytes(c10::DeviceIndex device) {
  if (const std::int64_t set = set_bytes[0]; set >= 0) return static_cast<std::size_t>(set);
  if (const auto configured = configured_workspace()) return *configured;
  const int major = runtime().device(device).properties.major;
  const int version = runtime().torch_version;
  const bool is_large = major == 9 || (version >= 212 && (major == 10 || major == 12)) ||
                        (version >= 214 && major == 11);
  return is_large ? std::size_t{4096} * 8 * 1024 : std::size_t{8519680};
}

// CUBLASLT_WORKSPACE_SIZE, in KiB.
std::size_t lt_workspace_bytes() {
  if (const std::int64_t set = set_bytes[1]; set >= 0) return static_cast<std::size_t>(set);
  std::size_t kib = 1024;
  if (const char* const text = std::getenv("CUBLASLT_WORKSPACE_SIZE")) {
    if (int configured = 0; std::sscanf(text, "%d", &configured) == 1 && configured >= 0) {
      kib = static_cast<std::size_t>(configured);
    }
  }
  return kib * 1024;
}

// Read, not recorded: aten/src/ATen/cuda/CublasHandlePool.cpp of 2.15 (pull request 194311).
bool keeps_workspaces(const Call& call) {
  if (call.torch_version() < 215) return true;
  static const bool is_asked_for = c10::utils::check_env("TORCH_CUBLAS_WORKSPACE_CACHE") == true;
  return is_asked_for;
}

void take_workspace(Call& call, std::size_t bytes, bool lt) {
  const c10::DeviceIndex device = call.device();
  const bool is_kept = keeps_workspaces(call);
  const WorkspaceKey key{device, thread_handles.of(device), runtime().current_stream(device)};
  if (is_kept && workspaces().has(lt, key)) return;
  const OperationScope scope(call.info().name, Role::workspace);
  const DeviceScope on(device);
  at::DataPtr memory = take_memory(bytes);
  if (is_kept) workspaces().keep(lt, key, std::move(memory));
}

}  // namespace

void take_blas_workspace(Call& call) {
  take_workspace(call, blas_workspace_bytes(call.device()), false);
}

void take_lt_workspace(Call& call) {
  const bool is_kept = keeps_workspaces(call);
  if (is_kept) take_blas_workspace(call);  // its handle is cuBLAS's
  if (!is_kept || call.torch_version() < 212) take_workspace(call, lt_workspace_bytes(), true);
}

void set_blas_workspace_bytes(bool lt, std::int64_t bytes) { set_bytes[lt ? 1 : 0] = bytes; }

std::size_t current_blas_workspace_bytes(bool lt) {
  return lt ? lt_workspace_bytes() : blas_workspace_bytes(runtime().current_device());
}

void clear_blas_workspaces() { workspaces().clear(); }

}  // namespace plimsoll::simulated
