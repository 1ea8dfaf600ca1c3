// A GPU, and the engine that allocates its memory. The engine is opened at the first request,
// because opening makes a context on the GPU, and a process may see GPUs that it never uses. Until
// the engine is open, this class keeps the engine's settings: limit, peers and observer.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "plimsoll/engine_api.h"
#include "versions.h"

namespace plimsoll::live {

// The table of the engines' functions; set once, before the first use.
inline const plimsoll_engine_api* api = nullptr;

// Opens a device's engine. On failure it returns null and writes the reason into `problem`. It may
// take the interpreter's lock, so the caller must not hold any lock.
using OpenEngine = plimsoll_engine* (*)(int device, char* problem, size_t capacity);

// Throws PyTorch's exception if `status` is a failure.
void check(int status);

inline plimsoll_pool_id engine_pool(MempoolId_t pool) { return {pool.first, pool.second}; }
inline MempoolId_t torch_pool(plimsoll_pool_id pool) { return {pool.first, pool.second}; }
inline uint64_t as_number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
inline void* as_pointer(uint64_t number) { return reinterpret_cast<void*>(number); }

class Device {
 public:
  using Observe = void (*)(void*, const plimsoll_event*);

  void prepare(DeviceIndex index, size_t total, double fraction, OpenEngine open_engine);

  [[nodiscard]] plimsoll_engine* engine() {
    plimsoll_engine* engine = engine_.load(std::memory_order_acquire);
    return engine != nullptr ? engine : open();
  }
  // Returns the engine; null if this GPU has not been used yet.
  [[nodiscard]] plimsoll_engine* engine_if_open() const {
    return engine_.load(std::memory_order_acquire);
  }

  [[nodiscard]] DeviceIndex index() const { return index_; }
  [[nodiscard]] double fraction() const { return fraction_.load(); }
  void set_fraction(double fraction);
  // Returns how many bytes may be reserved: the limit if there is one, otherwise all of the GPU's
  // memory.
  [[nodiscard]] size_t allowed() const;

  void add_peer(int device);
  void set_observer(Observe observe, void* data);

  // Returns the live block of this GPU that contains a pointer, with the block's segment; none if
  // no block contains the pointer.
  [[nodiscard]] std::optional<plimsoll_place> locate(const void* pointer) const;

 private:
  plimsoll_engine* open();
  void apply_fraction(plimsoll_engine* engine) const;

  std::atomic<plimsoll_engine*> engine_ = nullptr;
  DeviceIndex index_ = 0;
  size_t total_ = 0;
  OpenEngine open_ = nullptr;

  std::mutex settings_;  // protects the members below, and their transfer to the engine
  std::atomic<double> fraction_ = 1.0;
  std::vector<int> peers_;
  Observe observe_ = nullptr;
  void* observe_data_ = nullptr;
};

}  // namespace plimsoll::live
