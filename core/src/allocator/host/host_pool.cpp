#include "plimsoll/allocator/host/host_pool.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {
namespace {

constexpr Bytes kAlignment = 512;
constexpr Bytes kMost = Bytes{1} << 60;

std::atomic<HostPool*> pool_of_process{nullptr};

}  // namespace

void CallTime::add(std::int64_t time_us) {
  min_us = min_us == 0 ? time_us : std::min(min_us, time_us);
  max_us = std::max(max_us, time_us);
  total_us += time_us;
  ++count;
}

HostPool& HostPool::of_process(Driver& driver) {
  static HostPool& pool = [&driver]() -> HostPool& {
    auto* const made = new HostPool(driver);
    pool_of_process = made;
    return *made;
  }();
  return pool;
}

HostPool* HostPool::of_process_if_open() { return pool_of_process; }

HostPool::~HostPool() {
  captures_ = 0;
  pool_uses_.clear();
  empty_cache();
}

Address HostPool::allocate(Bytes requested, PoolId pool) {
  std::unique_lock guard(mutex_);
  const Bytes size = round_up(std::clamp(requested, Bytes{1}, kMost), kAlignment);
  complete_frees(Effort::oldest);
  std::optional<Address> address = take(size);
  if (!address) {
    complete_frees(Effort::all);
    address = take(size);
  }
  Status status = address ? Status::success : grow(size, address, guard);
  if (status != Status::success) {
    complete_frees(Effort::wait);
    complete_frees_of_graphs();
    address = take(size);
    if (!address) {
      release_chunks();
      status = grow(size, address, guard);
    }
  }
  if (!address) fail(requested, round_up(size, kGranule), status);
  blocks_.emplace(*address, Block{size, pool, {}});
  statistics_.active.increase(1);
  statistics_.active_bytes.increase(size);
  return *address;
}

bool HostPool::free(Address address) {
  const std::lock_guard guard(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  Freed freed{address, std::move(found->second), {}};
  blocks_.erase(found);
  if (!freed.block.pool.is_default()) {
    freed_by_graphs_.push_back(std::move(freed));
  } else if (is_complete(freed, false)) {
    retire(freed);
  } else {
    freed_.push_back(std::move(freed));
  }
  return true;
}

bool HostPool::record(Address address, StreamId stream, Driver& driver) {
  const std::lock_guard guard(mutex_);
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return false;
  auto& [begin, block] = *std::prev(after);
  if (address - begin >= block.size) return false;
  const Use use{&driver, stream};
  if (std::ranges::find(block.uses, use) == block.uses.end()) block.uses.push_back(use);
  return true;
}

void HostPool::empty_cache() {
  const std::lock_guard guard(mutex_);
  complete_frees(Effort::wait);
  complete_frees_of_graphs();
  release_chunks();
}

// --- chunks and holes --------------------------------------------------------------------------

std::optional<Address> HostPool::take(Bytes size) {
  const auto best = holes_by_size_.lower_bound({size, 0});
  if (best == holes_by_size_.end()) return std::nullopt;
  const auto [hole_size, address] = *best;
  remove_hole(holes_.find(address));
  if (hole_size > size) add_hole(address + size, hole_size - size);
  return address;
}

void HostPool::give(Address address, Bytes size) {
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && next->first == address + size && !chunks_.contains(next->first)) {
    size += next->second;
    remove_hole(next++);
  }
  if (next != holes_.begin() && !chunks_.contains(address)) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      address = previous->first;
      size += previous->second;
      remove_hole(previous);
    }
  }
  add_hole(address, size);
}

void HostPool::add_hole(Address address, Bytes size) {
  holes_.emplace(address, size);
  holes_by_size_.emplace(size, address);
}

void HostPool::remove_hole(std::map<Address, Bytes>::iterator hole) {
  holes_by_size_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

// Returns whether the machine can spare this much. Locking more would not fail, but would stall the
// machine.
bool HostPool::has_room(Bytes size) const {
  const Bytes reserved = static_cast<Bytes>(statistics_.reserved_bytes.current) + growing_;
  if (limit_ && (reserved > *limit_ || size > *limit_ - reserved)) return false;
  const MemoryInfo shared = driver_.shared_info();
  return shared.total == 0 || size <= shared.free;
}

Status HostPool::grow(Bytes size, std::optional<Address>& address,
                      std::unique_lock<std::mutex>& guard) {
  const Bytes chunk_size = round_up(size, kGranule);
  if (!has_room(chunk_size)) return Status::out_of_memory;
  growing_ += chunk_size;
  guard.unlock();
  Address chunk = 0;
  const std::int64_t begin_us = driver_.now_us();
  const Status status = driver_.allocate_host(chunk_size, chunk);
  const std::int64_t end_us = driver_.now_us();
  guard.lock();
  growing_ -= chunk_size;
  if (status != Status::success) return status;
  statistics_.allocate_time.add(end_us - begin_us);
  statistics_.segment.increase(1);
  statistics_.reserved_bytes.increase(chunk_size);
  chunks_.emplace(chunk, chunk_size);
  if (chunk_size > size) add_hole(chunk + size, chunk_size - size);
  address = chunk;
  return Status::success;
}

void HostPool::release_chunks() {
  for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
    const auto [address, size] = *chunk;
    const auto hole = holes_.find(address);
    const std::int64_t begin_us = driver_.now_us();
    if (hole == holes_.end() || hole->second != size ||
        driver_.deallocate_host(address) != Status::success) {
      ++chunk;
      continue;
    }
    statistics_.deallocate_time.add(driver_.now_us() - begin_us);
    statistics_.segment.decrease(1);
    statistics_.reserved_bytes.decrease(size);
    remove_hole(hole);
    chunk = chunks_.erase(chunk);
  }
}

void HostPool::fail(Bytes requested, Bytes tried, Status status) const {
  if (status != Status::out_of_memory) {
    throw DriverError("lock host memory", status, driver_.last_error());
  }
  const MemoryInfo shared = driver_.shared_info();
  const auto active = static_cast<Bytes>(statistics_.active_bytes.current);
  const auto reserved = static_cast<Bytes>(statistics_.reserved_bytes.current);
  throw HostOutOfMemory(
      "Shared GPU memory (page-locked host memory) is spent. Tried to lock " + format_bytes(tried) +
      " for a request of " + format_bytes(requested) + ". " + format_bytes(shared.free) + " of " +
      format_bytes(shared.total) + " can still be locked" +
      (limit_ ? "; " + format_bytes(*limit_) + " allowed" : "") + ". This process has " +
      format_bytes(active) + " of pinned memory in use, and " + format_bytes(reserved - active) +
      " is locked but unallocated");
}

// --- pending frees -----------------------------------------------------------------------------

bool HostPool::is_complete(Freed& freed, bool wait) {
  auto& [address, block, events] = freed;
  events.reserve(events.size() + block.uses.size());
  std::erase_if(block.uses, [&](const Use& use) {
    Event event = 0;
    if (use.driver->record(use.stream, event) != Status::success) return false;
    events.emplace_back(use.driver, event);
    return true;
  });
  std::erase_if(events, [&](const auto& recorded) {
    const auto [driver, event] = recorded;
    const Status status = wait ? driver->synchronize(event) : driver->query(event);
    return status == Status::success && driver->destroy(event) == Status::success;
  });
  return block.uses.empty() && events.empty();
}

void HostPool::retire(const Freed& freed) {
  statistics_.active.decrease(1);
  statistics_.active_bytes.decrease(freed.block.size);
  give(freed.address, freed.block.size);
}

void HostPool::complete_frees(Effort effort) {
  for (auto freed = freed_.begin(); freed != freed_.end();) {
    if (is_complete(*freed, effort == Effort::wait)) {
      retire(*freed);
      freed = freed_.erase(freed);
    } else if (effort == Effort::oldest) {
      return;
    } else {
      ++freed;
    }
  }
}

// --- graphs ------------------------------------------------------------------------------------

void HostPool::begin_allocate_to_pool(PoolId pool) {
  const std::lock_guard guard(mutex_);
  complete_frees_of_graphs();  // before the capture, which forbids waiting for the device
  ++pool_uses_[pool];
  ++captures_;
}

void HostPool::end_allocate_to_pool() {
  const std::lock_guard guard(mutex_);
  if (captures_ > 0) --captures_;
}

void HostPool::release_pool(PoolId pool) {
  const std::lock_guard guard(mutex_);
  const auto uses = pool_uses_.find(pool);
  if (uses != pool_uses_.end() && --uses->second == 0) pool_uses_.erase(uses);
}

// Completes the frees of blocks that released graphs used. Waits for the whole device, because the
// streams on which a graph was replayed are unknown. During a capture, does nothing: the wait would
// break the capture.
void HostPool::complete_frees_of_graphs() {
  const auto is_released = [&](const Freed& freed) {
    return !pool_uses_.contains(freed.block.pool);
  };
  if (captures_ > 0 || std::ranges::none_of(freed_by_graphs_, is_released)) return;
  std::set<Driver*> drivers{&driver_};
  for (const Freed& freed : freed_by_graphs_) {
    for (const Use& use : freed.block.uses) drivers.insert(use.driver);
  }
  for (Driver* const driver : drivers) {
    if (driver->synchronize() != Status::success) return;
  }
  for (const Freed& freed : freed_by_graphs_) {
    if (is_released(freed)) retire(freed);
  }
  std::erase_if(freed_by_graphs_, is_released);
}

// --- statistics --------------------------------------------------------------------------------

void HostPool::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard guard(mutex_);
  limit_ = limit;
}

std::optional<Bytes> HostPool::limit() const {
  const std::lock_guard guard(mutex_);
  return limit_;
}

HostStatistics HostPool::statistics() const {
  const std::lock_guard guard(mutex_);
  return statistics_;
}

void HostPool::reset_peak_statistics() {
  const std::lock_guard guard(mutex_);
  auto& [active, active_bytes, segment, reserved_bytes, allocate_time, deallocate_time] =
      statistics_;
  for (Stat* stat : {&active, &active_bytes, &segment, &reserved_bytes}) stat->reset_peak();
  for (CallTime* time : {&allocate_time, &deallocate_time}) time->max_us = time->min_us = 0;
}

void HostPool::reset_accumulated_statistics() {
  const std::lock_guard guard(mutex_);
  auto& [active, active_bytes, segment, reserved_bytes, allocate_time, deallocate_time] =
      statistics_;
  for (Stat* stat : {&active, &active_bytes, &segment, &reserved_bytes}) stat->reset_accumulated();
  for (CallTime* time : {&allocate_time, &deallocate_time}) time->count = time->total_us = 0;
}

}  // namespace plimsoll
