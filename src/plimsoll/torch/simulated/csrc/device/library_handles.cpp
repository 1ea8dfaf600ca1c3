#include "device/library_handles.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

class HandlePool {
 public:
  // `first` says how much memory a device's first handle takes, and `further` how much each later
  // handle takes.
  HandlePool(Library first, Library further) : first_(first), further_(further) {}

  int take(c10::DeviceIndex device) {
    const auto [handle, is_made] = claim(device);
    if (is_made) return handle;
    try {
      runtime().load_again(device, handle == 0 ? first_ : further_);
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
    std::vector<int> free, unmade;  // `unmade`: handles for which the card had no room
    int count = 0;
  };

  // Chooses a handle. Returns its number, and whether its memory has been taken already.
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

  const Library first_, further_;
  std::mutex mutex_;
  std::map<c10::DeviceIndex, Handles> handles_;
};

// The pools are never destroyed: threads that end late still return handles to them.
HandlePool& blas_pool() {
  static auto* const pool = new HandlePool(Library::blas, Library::blas_handle);
  return *pool;
}

HandlePool& solver_pool() {
  static auto* const pool = new HandlePool(Library::solver, Library::solver_handle);
  return *pool;
}

class ThreadHandles {
 public:
  explicit ThreadHandles(HandlePool& pool) : pool_(pool) {}
  ~ThreadHandles() {
    for (const auto& [device, handle] : handles_) pool_.give_back(device, handle);
  }
  ThreadHandles(const ThreadHandles&) = delete;
  ThreadHandles& operator=(const ThreadHandles&) = delete;

  int of(c10::DeviceIndex device) {
    const auto place = handles_.find(device);
    if (place != handles_.end()) return place->second;
    const int handle = pool_.take(device);  // throws if the card has no room
    return handles_[device] = handle;
  }

 private:
  HandlePool& pool_;
  std::map<c10::DeviceIndex, int> handles_;
};

}  // namespace

int blas_handle(c10::DeviceIndex device) {
  thread_local ThreadHandles handles(blas_pool());
  return handles.of(device);
}

void need_solver_handle(c10::DeviceIndex device) {
  thread_local ThreadHandles handles(solver_pool());
  handles.of(device);
}

}  // namespace plimsoll::simulated
