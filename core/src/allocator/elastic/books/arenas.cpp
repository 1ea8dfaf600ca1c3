#include "plimsoll/allocator/elastic/books/arenas.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace plimsoll {

Arenas::Arenas(ConcurrentStatistics& counters) : counters_(counters) {
  tables_.push_back(std::make_unique<ReservationTable>());
  reservations_.store(tables_.back().get());
}

Arena* Arenas::around(Address address) const {
  const ReservationTable& table = *reservations_.load(std::memory_order_acquire);
  const auto after = std::upper_bound(table.begin(), table.end(), address,
                                      [](Address wanted, const Reservation& reservation) {
                                        return wanted < reservation.range.address;
                                      });
  if (after == table.begin()) return nullptr;
  const Reservation& reservation = *std::prev(after);
  return address < reservation.range.end() ? reservation.arena : nullptr;
}

Arena& Arenas::for_request(StreamId stream) {
  ElasticPool* pool = private_pools_.pool_for(stream);
  if (const RegionId region = ThisThread::placement().region;
      pool == nullptr && region != kNoRegion) {
    const PoolId id = ElasticPool::id_of(region);
    know_region(id);
    pool = &private_pools_.at(id);
  }
  if (pool != nullptr) {
    pool->require_not_paused();
    return of(*pool, stream);
  }
  Arena& arena = of(default_pool_, stream);
  slot_of(stream).store(&arena, std::memory_order_release);
  return arena;
}

void Arenas::know_region(PoolId pool) {
  if (ElasticPool::is_region(pool) && !private_pools_.contains(pool)) private_pools_.use(pool);
}

Arena* Arenas::find(const ElasticPool& pool, StreamId stream) const {
  const auto known = index_.find({&pool, stream});
  return known == index_.end() ? nullptr : known->second;
}

Arena& Arenas::of(ElasticPool& pool, StreamId stream) {
  if (Arena* const known = find(pool, stream)) return *known;
  Arena*& place = index_[{&pool, stream}];
  if (unused_.empty()) {
    place = &arenas_.emplace_back(stream, pool, counters_.add_shard());
  } else {
    place = unused_.back();
    unused_.pop_back();
  }
  const Arena::Guard guard(*place);
  place->stream = stream;
  place->pool = &pool;
  place->taken = 0;
  for (MappedSpace* const space : place->spaces()) space->set_no_split(pool.no_split);
  return *place;
}

void Arenas::add_reservation(MappedSpace& space, const AddressRange& range) {
  space.add_reservation(range.address, range.size);
  auto table = std::make_unique<ReservationTable>(*reservations_.load());
  const auto place = std::find_if(
      table->begin(), table->end(),
      [&](const Reservation& reservation) { return reservation.range.address > range.address; });
  table->insert(place, Reservation{range, &space.arena()});
  reservations_.store(table.get(), std::memory_order_release);
  tables_.push_back(std::move(table));
}

void Arenas::set_plan(std::shared_ptr<const ProgramPlan> plan) {
  if (!arenas_.empty()) throw std::logic_error("a plan begins with the first request");
  plan_ = std::move(plan);
}

const StreamPlan* Arenas::next_plan(Arena& arena) {
  arena.is_plan_known = true;
  const std::size_t number = planned_streams_++;
  return number < plan_->streams.size() ? &plan_->streams[number] : nullptr;
}

bool Arenas::let_planned_give() {
  bool any = false;
  for (Arena& arena : arenas_) {
    const Arena::Guard guard(arena);
    if (arena.planned.reservations().empty() || arena.planned_gives) continue;
    arena.planned_gives = any = true;
  }
  return any;
}

void Arenas::begin_capture(PoolId pool, Allocator::Filter filter) {
  private_pools_.begin_capture(pool, std::move(filter));
  has_captures_.store(true, std::memory_order_release);
}

void Arenas::end_capture(PoolId pool) {
  private_pools_.end_capture(pool);
  has_captures_.store(private_pools_.is_capturing(), std::memory_order_release);
}

bool Arenas::forget_if_unused(ElasticPool& pool) {
  const auto first = index_.lower_bound({&pool, 0});
  auto last = first;
  bool is_unused = pool.reserved == 0;
  for (; last != index_.end() && last->first.first == &pool; ++last) {
    is_unused &= !last->second->has_retired();
  }
  if (!is_unused) return false;
  for (auto entry = first; entry != last; ++entry) {
    unused_.push_back(entry->second);
    entry->second->pool = &default_pool_;
  }
  index_.erase(first, last);
  private_pools_.forget(pool.id);
  return true;
}

Bytes Arenas::free_in_private_pools() const {
  Bytes bytes = 0;
  for (Arena& arena : arenas_) {
    if (arena.pool->is_default() || arena.pool->is_region()) continue;
    const Arena::Guard guard(arena);
    for (const MappedSpace* const space : arena.spaces()) {
      space->free_blocks().for_each([&](const Block* block) { bytes += block->size; });
    }
  }
  return bytes;
}

}  // namespace plimsoll
