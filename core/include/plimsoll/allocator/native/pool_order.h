// A set of private pools, in the order in which PyTorch iterates over them. This is the order of
// PyTorch's hash table, ska::flat_hash_map.
//
// The number of slots is a power of two, and at least twice the number of pools. A few extra slots
// follow at the end. A pool's number times a constant gives its preferred slot. A new pool tries
// this slot, then the slots after it, and stays in the first empty one. But if a slot on the way
// holds an old pool that is nearer to its preferred slot than the new pool would be to its own, the
// new pool takes that slot. The old pool then tries the slots after it, by the same rule. So the
// order depends on the pools' numbers and on the size of the table, which never shrinks. If two
// pools prefer the same slot, the order also depends on which pools were inserted first.
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
  // Returns all pools, in PyTorch's order.
  [[nodiscard]] std::vector<PoolId> ids() const;

 private:
  struct Slot {
    PoolId pool;
    std::size_t distance = 0;  // from the pool's preferred slot
  };

  [[nodiscard]] std::size_t wanted(PoolId pool) const;
  [[nodiscard]] std::optional<std::size_t> find(PoolId pool) const;
  [[nodiscard]] std::size_t most_lookups() const;
  void grow();

  std::vector<std::optional<Slot>> slots_;
  int bits_ = 0;  // `slots_` has 2^bits_ + `most_lookups` elements; it is empty if `bits_` is 0
  std::size_t count_ = 0;
};

}  // namespace plimsoll
