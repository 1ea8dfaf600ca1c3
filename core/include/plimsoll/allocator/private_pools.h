// Keeps the private pools of an allocator. Counts the uses of each pool, and chooses the pool that
// serves a request.
//
// A pool is created at its first use. The allocator may drop the pool once it has 0 uses. A capture
// lasts from `begin_capture` to `end_capture`, for example while PyTorch captures a CUDA graph. A
// capture has a filter and a pool. The requests that pass the filter go to the pool. If a request
// passes the filters of several captures, the pool of the capture that began last gets it. Before
// PyTorch 2.10, the pool of the capture that began first gets it.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/torch_versions.h"

namespace plimsoll {

// The data that a private pool has in every allocator.
struct PoolBase {
  explicit PoolBase(PoolId name) : id(name) {}

  PoolId id;
  int uses = 1;             // graphs and MemPools that use the pool; at 0 the pool may be emptied
  Bytes reserved = 0;       // if this and `uses` are 0, the pool may be dropped
  bool use_on_oom = false;  // options: see PoolOption
  bool no_split = false;

  // Switches an option. Throws std::invalid_argument if no_split would be switched off.
  void set(PoolOption option, bool on) {
    switch (option) {
      case PoolOption::use_on_oom: use_on_oom = on; return;
      case PoolOption::no_split:
        if (!on) throw std::invalid_argument("a pool that never splits blocks stays one");
        no_split = true;
        return;
    }
    throw std::invalid_argument("a pool has no such option");
  }
};

template <typename PoolType>
class PrivatePools {
 public:
  explicit PrivatePools(TorchVersion version = {}) : version_(version) {}

  // Returns a pool. Throws std::invalid_argument if there is no such pool.
  [[nodiscard]] PoolType& at(PoolId pool) {
    const auto entry = pools_.find(pool);
    if (entry == pools_.end()) {
      throw std::invalid_argument("there is no private pool (" + std::to_string(pool.first) + ", " +
                                  std::to_string(pool.second) + ")");
    }
    return entry->second;
  }
  [[nodiscard]] bool contains(PoolId pool) const { return pools_.contains(pool); }

  // Counts one more use of the pool, and creates it if it is new.
  void use(PoolId pool) {
    if (pool.is_default()) throw std::invalid_argument("(0, 0) is the default pool");
    const auto [entry, is_new] = pools_.try_emplace(pool, pool);
    if (!is_new) ++entry->second.uses;
  }
  void release(PoolId pool) {
    PoolType& entry = at(pool);
    if (entry.uses == 0) throw std::invalid_argument("this private pool was released already");
    --entry.uses;
  }
  // Returns the pool's number of uses; 0 if there is no such pool.
  [[nodiscard]] int uses(PoolId pool) const {
    const auto entry = pools_.find(pool);
    return entry == pools_.end() ? 0 : entry->second.uses;
  }
  void forget(PoolId pool) { pools_.erase(pool); }

  // Sends the requests that pass the filter to the pool (all requests if the filter is empty), and
  // counts one more use.
  void begin_capture(PoolId pool, Allocator::Filter filter) {
    if (capture_to(pool) != captures_.end()) {
      throw std::invalid_argument("requests go to this private pool already");
    }
    use(pool);
    captures_.push_back({pool, std::move(filter)});
  }
  void end_capture(PoolId pool) {
    const auto capture = capture_to(pool);
    if (capture == captures_.end()) {
      throw std::invalid_argument("no requests go to this private pool");
    }
    captures_.erase(capture);
  }
  [[nodiscard]] bool is_capturing() const { return !captures_.empty(); }
  // Returns the pool that serves requests on the stream; null means the default pool.
  [[nodiscard]] PoolType* pool_for(StreamId stream) {
    return captures_.empty() ? nullptr : capturing_pool_for(stream);
  }

  // Iterate over pairs of id and pool, in the order of the ids. Dropping a pool leaves iterators of
  // other pools valid.
  [[nodiscard]] auto begin() { return pools_.begin(); }
  [[nodiscard]] auto end() { return pools_.end(); }
  [[nodiscard]] auto begin() const { return pools_.begin(); }
  [[nodiscard]] auto end() const { return pools_.end(); }

 private:
  struct Capture {
    PoolId pool;
    Allocator::Filter filter;
  };

  [[nodiscard]] PoolType* capturing_pool_for(StreamId stream) {
    const auto takes = [&](const Capture& capture) {
      return !capture.filter || capture.filter(stream);
    };
    if (!version_.prefers_last_pool()) {
      const auto first = std::find_if(captures_.begin(), captures_.end(), takes);
      return first == captures_.end() ? nullptr : &at(first->pool);
    }
    const auto last = std::find_if(captures_.rbegin(), captures_.rend(), takes);
    return last == captures_.rend() ? nullptr : &at(last->pool);
  }

  [[nodiscard]] auto capture_to(PoolId pool) {
    return std::find_if(captures_.begin(), captures_.end(),
                        [&](const Capture& capture) { return capture.pool == pool; });
  }

  TorchVersion version_;
  std::map<PoolId, PoolType> pools_;
  std::vector<Capture> captures_;
};

}  // namespace plimsoll
