// A set of private pools in the order in which PyTorch goes through them: that of its hash table,
// ska::flat_hash_map.
//
// The table has a power of two of slots, at least twice as many as pools, and some more at the end.
// A pool's number times a constant names the slot where it wants to be. It stands there or after
// it: a pool that is farther from its slot takes the place of one that is nearer. So the order
// depends on the numbers and, where two want the same slot, on who came first.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

class PoolOrder {
 public:
  void insert(PoolId pool);
  void erase(PoolId pool);
  [[nodiscard]] bool contains(PoolId pool) const { return find(pool).has_value(); }
  // All of them, in PyTorch's order.
  [[nodiscard]] std::vector<PoolId> ids() const;

 private:
  struct Slot {
    PoolId pool;
    std::size_t distance = 0;  // from the slot where the pool wants to be
  };

  [[nodiscard]] std::size_t wanted(PoolId pool) const;
  [[nodiscard]] std::optional<std::size_t> find(PoolId pool) const;
  [[nodiscard]] std::size_t most_lookups() const;
  void grow();

  std::vector<std::optional<Slot>> slots_;
  int bits_ = 0;  // 2^bits_ slots, and `most_lookups` more; 0: none
  std::size_t count_ = 0;
};

}  // namespace plimsoll
