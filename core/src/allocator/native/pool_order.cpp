#include "plimsoll/allocator/native/pool_order.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr std::uint64_t kGoldenRatio = 11400714819323198485u;
constexpr std::size_t kFewestLookups = 4;

}  // namespace

std::size_t PoolOrder::wanted(PoolId pool) const {
  const std::uint64_t number = pool.first != 0 ? pool.first : pool.second;
  return static_cast<std::size_t>(number * kGoldenRatio >> (64 - bits_));
}

std::size_t PoolOrder::most_lookups() const {
  return std::max(kFewestLookups, static_cast<std::size_t>(bits_));
}

std::optional<std::size_t> PoolOrder::find(PoolId pool) const {
  const auto place = std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) {
    return slot.has_value() && slot->pool == pool;
  });
  if (place == slots_.end()) return std::nullopt;
  return static_cast<std::size_t>(place - slots_.begin());
}

void PoolOrder::grow() {
  const std::vector<PoolId> before = ids();
  bits_ = std::max(2, bits_ + 1);
  count_ = 0;
  slots_.assign((std::size_t{1} << bits_) + most_lookups(), std::nullopt);
  for (const PoolId pool : before) insert(pool);
}

void PoolOrder::insert(PoolId pool) {
  if (contains(pool)) return;
  if (bits_ == 0 || 2 * (count_ + 1) > std::size_t{1} << bits_) {
    grow();
    insert(pool);
    return;
  }
  Slot inserted{pool, 0};
  for (std::size_t place = wanted(pool);; ++place, ++inserted.distance) {
    // If the pool in `inserted` is now too far from its preferred slot, the table grows, and the
    // insertion of this pool starts again.
    if (inserted.distance == most_lookups()) {
      grow();
      insert(inserted.pool);
      return;
    }
    std::optional<Slot>& slot = slots_[place];
    if (!slot.has_value()) {
      slot = inserted;
      ++count_;
      return;
    }
    if (slot->distance < inserted.distance) std::swap(*slot, inserted);
  }
}

void PoolOrder::erase(PoolId pool) {
  const auto place = find(pool);
  if (!place) return;
  --count_;
  slots_[*place].reset();
  for (std::size_t next = *place + 1; next < slots_.size(); ++next) {
    if (!slots_[next].has_value() || slots_[next]->distance == 0) return;
    slots_[next - 1] = Slot{slots_[next]->pool, slots_[next]->distance - 1};
    slots_[next].reset();
  }
}

std::vector<PoolId> PoolOrder::ids() const {
  std::vector<PoolId> ids;
  for (const auto& slot : slots_) {
    if (slot.has_value()) ids.push_back(slot->pool);
  }
  return ids;
}

}  // namespace plimsoll
