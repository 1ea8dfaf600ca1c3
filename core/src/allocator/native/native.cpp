#include "plimsoll/allocator/native/native.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace plimsoll {

NativeAllocator::NativeAllocator(Driver& driver, const AllocatorConfig& config,
                                 TorchVersion version, int device)
    : Allocator(driver, device), config_(config), version_(version) {
  configure(config);
  if (config.per_process_memory_fraction < 1.0) {
    limit_ = static_cast<Bytes>(config.per_process_memory_fraction *
                                static_cast<double>(driver.memory_info().total));
  }
}

NativeAllocator::~NativeAllocator() = default;

void NativeAllocator::configure(const AllocatorConfig& config) {
  const auto reserve = config_.expandable_segments_reserve;
  config_ = config;
  // Later settings can change it, but not take it back.
  if (!config_.expandable_segments_reserve) config_.expandable_segments_reserve = reserve;
  statistics_.max_split_size = static_cast<std::int64_t>(config.max_split_size);
}

// --- sizes and pools ---------------------------------------------------------------------------

Pool& NativeAllocator::pool_for(Bytes size, StreamId stream) {
  const bool small = size <= AllocatorConfig::kSmallRequest;
  if (PrivatePool* const pool = private_pools_.pool_for(stream)) {
    return small ? pool->small : pool->large;
  }
  return small ? small_ : large_;
}

NativeAllocator::Request NativeAllocator::request_for(Bytes size, StreamId stream) {
  const Bytes rounded = config_.round_request(size);
  return {rounded, config_.segment_size(rounded), stream, &pool_for(rounded, stream),
          config_.expandable_segments};
}

bool NativeAllocator::should_split(const Block* block, const Request& request) const {
  if (block->pool->owner != nullptr && block->pool->owner->no_split) return false;
  const Bytes rest = block->size - request.size;
  if (block->pool->small || request.expandable) return rest >= AllocatorConfig::kMinBlock;
  return request.size < config_.max_split_size && rest > AllocatorConfig::kSmallRequest;
}

// --- malloc ------------------------------------------------------------------------------------

Block* NativeAllocator::malloc(Bytes size, StreamId stream) {
  poll();
  Request request = request_for(size, stream);
  Block* block = take_free_block(request);
  if (block == nullptr) {
    for (Block* const unused : garbage()) release_segment(unused);
    if (is_rejected(request)) {
      ++statistics_.num_oom_rejections;
      fail(size, request.size, request.segment, stream, id_of(*request.pool),
           free_in_private_pools());
    }
    block = take_new_segment(request, false);
    if (block == nullptr && version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
    if (block == nullptr && release_oversize_blocks(request)) {
      block = take_new_segment(request, false);
    }
    if (block == nullptr && !is_capturing()) {
      release_cached_blocks({});
      block = take_new_segment(request, true);
    }
    if (block == nullptr && !version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
  }
  if (block == nullptr) {
    fail(size, request.size, request.segment, stream, id_of(*request.pool),
         free_in_private_pools());
  }
  return lend(block, request, size, should_split(block, request));
}

Block* NativeAllocator::malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  poll();
  Block* const block = free_block_around(address, size, stream, pool);
  block->pool->erase(block);
  Block* prefix = nullptr;
  if (const Bytes before = address - block->address; before > 0) {
    if (version_.allocates_prefixes()) {
      prefix = lend(block, {before, before, stream, block->pool, true}, before, true);
      block->pool->erase(block);
    } else {
      split_off_front(block, before);
    }
  }
  const Request request{size, size, stream, block->pool, block->expandable != nullptr};
  Block* const lent = lend(block, request, size, block->size > size);
  if (prefix != nullptr) free(prefix);
  return lent;
}

Block* NativeAllocator::free_block_around(Address address, Bytes size, StreamId stream,
                                          PoolId pool) {
  PrivatePool* const owner = pool.is_default() ? nullptr : &private_pools_.at(pool);
  Block* found = nullptr;
  for (Pool* const of :
       {owner != nullptr ? &owner->small : &small_, owner != nullptr ? &owner->large : &large_}) {
    of->on(stream).free.for_each([&](Block* block) {
      if (block->address <= address && address - block->address < block->size) found = block;
    });
  }
  const bool fits = found != nullptr && size > 0 && size % AllocatorConfig::kMinBlock == 0 &&
                    address % AllocatorConfig::kMinBlock == 0 &&
                    size <= found->size - (address - found->address);
  if (!fits) {
    throw std::invalid_argument("no free block has " + std::to_string(size) + " bytes at " +
                                format_address(address));
  }
  return found;
}

// The first `size` bytes of a block that is in no index become a free block of their own.
void NativeAllocator::split_off_front(Block* block, Bytes size) {
  Pool& pool = *block->pool;
  const bool was_split = block->is_split();
  Block* const front = make_piece(block, block->address, size);
  front->segment_context = block->segment_context;
  front->previous = block->previous;
  if (front->previous != nullptr) front->previous->next = front;
  front->next = block;
  block->previous = front;
  block->address += size;
  block->size -= size;
  pool.insert(front);
  if (block->expandable != nullptr) return;
  statistics_.inactive_split.increase(pool.small, was_split ? 1 : 2);
  if (!was_split) statistics_.inactive_split_bytes.increase(pool.small, size + block->size);
}

// Inside a capture no event may be queried.
void NativeAllocator::poll() {
  if (!is_capturing()) waiting_frees_.process_events();
}

NativeAllocator::Outlook NativeAllocator::outlook(Bytes size, StreamId stream) {
  const Request request = request_for(size, stream);
  if (best_fit(request) != nullptr) return Outlook::cached;
  Bytes collected = 0;
  for (const Block* const block : garbage()) collected += block->size;
  if (exceeds_limit(request, collected)) return Outlook::refused;
  if (is_rejected(request, collected)) return Outlook::rejected;
  if (growth_for(request) > driver_.memory_info().free + collected) return Outlook::refused;
  return collected > 0 ? Outlook::collects : Outlook::grows;
}

bool NativeAllocator::is_rejected(const Request& request, Bytes collected) const {
  if (!config_.throw_on_cudamalloc_oom || exceeds_limit(request, collected)) return false;
  const auto bound = static_cast<Bytes>(config_.per_process_memory_fraction *
                                        static_cast<double>(driver_.memory_info().total));
  return reserved_ - collected + request.segment > bound;
}

// Only the first candidate by (size, order, address) is judged; if it is unfit, there is none.
Block* NativeAllocator::best_fit(const Request& request) const {
  const BestFitIndex& free = request.pool->on(request.stream).free;
  Block* block = free.lower_bound(request.size);
  if (block == nullptr) return nullptr;
  if (block->expandable != nullptr) {
    if (request.expandable) {
      // A block before unmapped space counts as large as it can grow.
      const auto reach = [](const Block* b) {
        return b->size + (b->next != nullptr && !b->next->mapped ? b->next->size : 0);
      };
      Block* next = free.next(block);
      while (block->expandable != nullptr && next != nullptr && reach(next) < reach(block)) {
        block = next;
        next = free.next(block);
      }
    } else {
      do {
        block = free.next(block);
      } while (block != nullptr && block->expandable != nullptr);
      if (block == nullptr) return nullptr;
    }
  }
  const Bytes oversize = config_.max_split_size;
  if (request.size < oversize && block->size >= oversize) return nullptr;
  if (request.size >= oversize && block->size >= request.size + config_.max_non_split_rounding) {
    return nullptr;
  }
  return block;
}

Block* NativeAllocator::take_free_block(const Request& request) {
  if (collects_garbage()) ++request.pool->searches;
  Block* const block = best_fit(request);
  if (block != nullptr) request.pool->erase(block);
  return block;
}

Block* NativeAllocator::take_from_oom_pools(Request& request) {
  if (request.pool->owner != nullptr) return nullptr;
  for (auto& [id, pool] : private_pools_) {
    if (!pool.use_on_oom) continue;
    Request inside = request;
    inside.pool = request.pool->small ? &pool.small : &pool.large;
    inside.expandable = false;
    if (Block* const block = take_free_block(inside)) {
      request = inside;
      return block;
    }
  }
  return nullptr;
}

Block* NativeAllocator::take_new_segment(const Request& request, bool is_retry) {
  if (is_retry) ++statistics_.num_alloc_retries;
  if (exceeds_limit(request)) return nullptr;
  if (is_rejected(request)) {
    ++statistics_.num_oom_rejections;
    return nullptr;
  }
  Pool& pool = *request.pool;
  if (request.expandable) return take_expandable(request);
  Address address = 0;
  const Status status = driver_.allocate(request.segment, address);
  if (status == Status::out_of_memory) return nullptr;
  if (status != Status::success) throw DriverError("allocate memory", status, driver_.last_error());
  Block* const block = make_first_block(address, request.segment, request);
  block->segment_context = context_;
  statistics_.segment.increase(pool.small, 1);
  add_reserved(pool, request.segment);
  if (request.segment >= config_.max_split_size) statistics_.oversize_segments.increase(1);
  ++statistics_.num_device_alloc;
  note(Action::segment_alloc, address, request.segment, request.stream, id_of(pool));
  return block;
}

Block* NativeAllocator::lend(Block* block, const Request& request, Bytes requested, bool splits) {
  Pool& pool = *request.pool;
  const bool was_split = block->is_split();
  if (splits) {
    // The front is a new block; the rest keeps its identity, and its last owner's request.
    Block* const rest = block;
    block = make_piece(rest, rest->address, request.size);
    block->segment_context = rest->segment_context;
    block->previous = rest->previous;
    if (block->previous != nullptr) block->previous->next = block;
    block->next = rest;
    rest->previous = block;
    rest->address += request.size;
    rest->size -= request.size;
    pool.insert(rest);
    if (block->expandable == nullptr) {
      if (was_split) {
        statistics_.inactive_split_bytes.decrease(pool.small, block->size);
      } else {
        statistics_.inactive_split_bytes.increase(pool.small, rest->size);
        statistics_.inactive_split.increase(pool.small, 1);
      }
    }
  } else if (was_split && block->expandable == nullptr) {
    statistics_.inactive_split_bytes.decrease(pool.small, block->size);
    statistics_.inactive_split.decrease(pool.small, 1);
  }
  block->allocated = true;
  block->requested = requested;
  block->context = context_;
  note(Action::alloc, block->address, requested, block->stream, id_of(*block->pool));
  statistics_.allocation.increase(pool.small, 1);
  statistics_.allocated_bytes.increase(pool.small, block->size);
  statistics_.active.increase(pool.small, 1);
  statistics_.active_bytes.increase(pool.small, block->size);
  statistics_.requested_bytes.increase(pool.small, requested);
  if (block->size >= config_.max_split_size) statistics_.oversize_allocations.increase(1);
  return block;
}

// --- expandable segments -----------------------------------------------------------------------

// The lowest place in the stream's expandable segments with enough free or unmapped space; null if
// there is none. It is either unmapped, or free with unmapped space right after it.
Block* NativeAllocator::expandable_place(const Request& request) const {
  const auto available = [](const Block* b) { return b != nullptr && !b->is_active(); };
  for (Block* const unmapped : request.pool->on(request.stream).unmapped) {
    Block* const first = available(unmapped->previous) ? unmapped->previous : unmapped;
    Bytes bytes = 0;
    for (const Block* b = first; bytes < request.size && available(b); b = b->next) {
      bytes += b->size;
    }
    if (bytes >= request.size) return first;
  }
  return nullptr;
}

// All of a new segment; null if that would be too small.
Block* NativeAllocator::make_expandable(const Request& request) {
  const Bytes size = expandable_size(request);
  if (size < request.size) return nullptr;
  auto segment = std::make_unique<ExpandableSegment>(driver_, returned_, request.stream, size,
                                                     page_size(*request.pool));
  Block* const all = make_first_block(segment->address(), segment->size(), request);
  all->mapped = false;
  all->expandable = segment.get();
  expandable_segments_.push_back(std::move(segment));
  request.pool->on(request.stream).unmapped.insert(all);
  return all;
}

Bytes NativeAllocator::growth_for(const Request& request) const {
  if (!request.expandable) return request.segment;
  const Block* block = expandable_place(request);
  if (block == nullptr) {
    if (expandable_size(request) < request.size) return AllocatorConfig::kUnlimited;
    return round_up(request.size, page_size(*request.pool));
  }
  Bytes growth = 0;
  for (Bytes bytes = 0; bytes < request.size; block = block->next) {
    Bytes gained = block->size;
    if (!block->mapped) {
      gained =
          round_up(std::min(request.size - bytes, block->size), block->expandable->page_size());
      growth += gained;
    }
    bytes += gained;
  }
  return growth;
}

bool NativeAllocator::map_block(Block* block, Bytes size) {
  const Bytes mapped = block->expandable->map(block->address, size);
  if (mapped == 0) return false;
  Pool& pool = *block->pool;
  auto& unmapped = pool.on(block->stream).unmapped;
  unmapped.erase(block);
  block->mapped = true;
  if (mapped < block->size) {
    Block* const rest = make_piece(block, block->address + mapped, block->size - mapped);
    rest->mapped = false;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    block->next = rest;
    block->size = mapped;
    unmapped.insert(rest);
  }
  const Address start = block->address;
  (void)merge(block, block->previous);
  (void)merge(block, block->next);
  pool.insert(block);
  add_reserved(pool, mapped);
  ++statistics_.num_device_alloc;
  note(Action::segment_map, start, mapped, block->stream, id_of(pool));
  if (block->previous == nullptr && block->segment_context == 0) block->segment_context = context_;
  return true;
}

Block* NativeAllocator::take_expandable(const Request& request) {
  Block* block = expandable_place(request);
  if (block == nullptr) block = make_expandable(request);
  if (block == nullptr) return nullptr;
  if (!block->mapped && !map_block(block, std::min(block->size, request.size))) return nullptr;
  while (block->size < request.size) {
    Block* const unmapped = block->next;
    if (!map_block(unmapped, std::min(request.size - block->size, unmapped->size))) return nullptr;
    block = unmapped;  // which has absorbed the block before it
  }
  request.pool->erase(block);
  return block;
}

void NativeAllocator::unmap_block(Block* block) {
  const auto [address, size] = block->expandable->unmap(block->address, block->size);
  if (size == 0) return;
  Pool& pool = *block->pool;
  pool.erase(block);
  const Address end = block->address + block->size;
  if (block->address < address) {
    Block* const front = make_piece(block, block->address, address - block->address);
    front->previous = block->previous;
    front->next = block;
    if (front->previous != nullptr) front->previous->next = front;
    block->previous = front;
    pool.insert(front);
  }
  if (address + size < end) {
    Block* const back = make_piece(block, address + size, end - (address + size));
    back->previous = block;
    back->next = block->next;
    if (back->next != nullptr) back->next->previous = back;
    block->next = back;
    pool.insert(back);
  }
  block->address = address;
  block->size = size;
  block->mapped = false;
  (void)merge(block, block->previous);
  (void)merge(block, block->next);
  pool.on(block->stream).unmapped.insert(block);
  remove_reserved(pool, size);
  ++statistics_.num_device_free;
  note(Action::segment_unmap, address, size, block->stream, id_of(pool), block->segment_context);
}

void NativeAllocator::release_expandable(Block* block) {
  const auto segment =
      std::find_if(expandable_segments_.begin(), expandable_segments_.end(),
                   [&](const auto& candidate) { return candidate.get() == block->expandable; });
  block->pool->on(block->stream).unmapped.erase(block);
  discard_block(block);
  expandable_segments_.erase(segment);
}

// --- free --------------------------------------------------------------------------------------

void NativeAllocator::free(Block* block) {
  const bool waits = !block->stream_uses.empty();
  if (waits && is_capturing()) {
    waiting_frees_.defer(block);
  } else if (waits) {
    waiting_frees_.wait(block);
  }
  Pool& pool = *block->pool;
  block->allocated = false;
  statistics_.allocation.decrease(pool.small, 1);
  statistics_.allocated_bytes.decrease(pool.small, block->size);
  note(Action::free_requested, block->address, block->requested, block->stream, id_of(pool),
       block->context);
  if (block->size >= config_.max_split_size) statistics_.oversize_allocations.decrease(1);
  if (!waits) complete_free(block);
}

void NativeAllocator::record_stream(Block* block, StreamId stream) {
  if (stream == block->stream) return;
  auto& uses = block->stream_uses;
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  if (is_capturing()) waiting_frees_.use_in_capture(block, stream);
}

void NativeAllocator::complete_free(Block* block) {
  Pool& pool = *block->pool;
  note(Action::free_completed, block->address, block->requested, block->stream, id_of(pool),
       block->context);
  block->context = 0;
  block->stream_uses.clear();
  const Bytes size = block->size;
  const Bytes requested = block->requested;
  // Net change of free blocks in split segments, which cannot go back to the driver.
  std::int64_t split_blocks = 0;
  std::int64_t split_bytes = 0;
  for (Block* const neighbour : {block->previous, block->next}) {
    if (const Bytes merged = merge(block, neighbour); merged > 0) {
      --split_blocks;
      split_bytes -= static_cast<std::int64_t>(merged);
    }
  }
  pool.insert(block);
  if (block->is_split()) {
    ++split_blocks;
    split_bytes += static_cast<std::int64_t>(block->size);
  }
  const auto change = [&](PoolStat& stat, std::int64_t by) {
    if (by > 0) stat.increase(pool.small, static_cast<std::uint64_t>(by));
    if (by < 0) stat.decrease(pool.small, static_cast<std::uint64_t>(-by));
  };
  if (block->expandable == nullptr) {
    change(statistics_.inactive_split, split_blocks);
    change(statistics_.inactive_split_bytes, split_bytes);
  }
  statistics_.active.decrease(pool.small, 1);
  statistics_.active_bytes.decrease(pool.small, size);
  statistics_.requested_bytes.decrease(pool.small, requested);
}

// Lets `block` absorb a neighbour that is free, or unmapped as it is itself; returns the bytes
// gained.
Bytes NativeAllocator::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || neighbour->is_active() || neighbour->mapped != block->mapped) {
    return 0;
  }
  Pool& pool = *block->pool;
  if (neighbour->mapped) {
    pool.erase(neighbour);
  } else {
    pool.on(neighbour->stream).unmapped.erase(neighbour);
  }
  if (neighbour == block->previous) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous != nullptr) block->previous->next = block;
    block->segment_context = neighbour->segment_context;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->previous = block;
  }
  const Bytes gained = neighbour->size;
  block->size += gained;
  discard_block(neighbour);
  return gained;
}

void NativeAllocator::synchronize_events(const PrivatePool* pool) {
  ++statistics_.num_sync_all_streams;
  waiting_frees_.synchronize_events(
      [&](const Block* block) { return pool == nullptr || block->pool->owner == pool; });
}

// --- giving memory back to the driver ----------------------------------------------------------

Bytes NativeAllocator::garbage_threshold() const {
  return static_cast<Bytes>(config_.garbage_collection_threshold * static_cast<double>(*limit_));
}

// The unsplit blocks of the large pool that are at least of average age, and again of those that
// are left, until enough is found or nothing more can be.
std::vector<Block*> NativeAllocator::garbage() const {
  std::vector<Block*> found;
  if (!collects_garbage() || reserved_ <= garbage_threshold()) return found;
  const Bytes target = reserved_ - garbage_threshold();
  const auto age = [&](const Block* block) { return large_.searches - block->age_base; };
  std::vector<Block*> left = large_.free_blocks();
  std::erase_if(left, [](const Block* block) { return block->is_split(); });
  std::uint64_t total_age = 0;
  for (const Block* block : left) total_age += age(block);
  Bytes bytes = 0;
  bool found_any = true;
  while (bytes < target && found_any && !left.empty()) {
    const double average = static_cast<double>(total_age) / static_cast<double>(left.size());
    found_any = false;
    std::erase_if(left, [&](Block* block) {
      if (block->expandable != nullptr || static_cast<double>(age(block)) < average) return false;
      found_any = true;
      bytes += block->size;
      total_age -= age(block);
      found.push_back(block);
      return true;
    });
  }
  return found;
}

// Returns blocks of max_split_size or more until the request would fit; false if they do not
// suffice.
bool NativeAllocator::release_oversize_blocks(const Request& request) {
  if (config_.max_split_size == AllocatorConfig::kUnlimited) return false;
  const Bytes needed = std::max(request.size, config_.max_split_size);
  const BestFitIndex& free = request.pool->on(request.stream).free;
  Block* block = free.lower_bound(needed);
  if (block != nullptr && block->expandable == nullptr) {
    release_segment(block);
    return true;
  }
  block = block != nullptr ? free.previous(block) : free.last();
  Bytes released = 0;
  while (block != nullptr && released < needed && block->size >= config_.max_split_size) {
    Block* const smaller = free.previous(block);
    if (block->expandable == nullptr) {
      released += block->size;
      release_segment(block);
    }
    block = smaller;
  }
  return released >= needed;
}

void NativeAllocator::empty_cache(PoolId pool) { release_cached_blocks(pool); }

void NativeAllocator::release_cached_blocks(PoolId pool) {
  returned_.offer();
  if (pool.is_default() && !is_capturing()) {
    synchronize_events(nullptr);
    release_free_segments(large_);
    release_free_segments(small_);
  }
  for (auto entry = private_pools_.begin(); entry != private_pools_.end();) {
    PrivatePool& candidate = (entry++)->second;
    if (candidate.uses > 0 || (!pool.is_default() && candidate.id != pool)) continue;
    if (!pool.is_default()) synchronize_events(&candidate);
    release_free_segments(candidate.small);
    release_free_segments(candidate.large);
    if (candidate.reserved == 0) private_pools_.forget(candidate.id);
  }
}

void NativeAllocator::release_free_segments(Pool& pool) {
  std::vector<Block*> expandable;
  for (Block* const block : pool.free_blocks()) {
    if (block->expandable != nullptr) {
      expandable.push_back(block);
    } else if (!block->is_split()) {
      release_segment(block);
    }
  }
  for (Block* const block : expandable) {
    unmap_block(block);
    if (!block->is_split() && !block->mapped) release_expandable(block);
  }
}

void NativeAllocator::release_segment(Block* block) {
  Pool& pool = *block->pool;
  if (const Status status = driver_.deallocate(block->address); status != Status::success) {
    throw DriverError("free memory", status, driver_.last_error());
  }
  ++statistics_.num_device_free;
  note(Action::segment_free, block->address, block->size, block->stream, id_of(pool),
       block->segment_context);
  statistics_.segment.decrease(pool.small, 1);
  remove_reserved(pool, block->size);
  if (block->size >= config_.max_split_size) statistics_.oversize_segments.decrease(1);
  pool.erase(block);
  discard_block(block);
}

void NativeAllocator::add_reserved(const Pool& pool, Bytes size) {
  reserved_ += size;
  statistics_.reserved_bytes.increase(pool.small, size);
  if (pool.owner == nullptr) return;
  pool.owner->reserved += size;
  if (version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[pool.owner->id].increase(pool.small, size);
  }
}

void NativeAllocator::remove_reserved(const Pool& pool, Bytes size) {
  reserved_ -= size;
  statistics_.reserved_bytes.decrease(pool.small, size);
  if (pool.owner == nullptr) return;
  pool.owner->reserved -= size;
  if (version_.counts_private_pools()) {
    statistics_.reserved_bytes_by_private_pools[pool.owner->id].decrease(pool.small, size);
  }
}

// --- private pools -----------------------------------------------------------------------------

void NativeAllocator::begin_allocate_to_pool(PoolId pool, Filter filter) {
  private_pools_.begin_capture(pool, std::move(filter));
}

void NativeAllocator::end_allocate_to_pool(PoolId pool) { private_pools_.end_capture(pool); }

void NativeAllocator::end_graph_capture() {
  if (graph_captures_ == 0) throw std::invalid_argument("no graph is being captured");
  --graph_captures_;
}

void NativeAllocator::use_pool(PoolId pool) { private_pools_.use(pool); }

void NativeAllocator::release_pool(PoolId pool) {
  private_pools_.release(pool);
  PrivatePool& released = private_pools_.at(pool);
  if (released.uses == 0 && version_.forgets_no_split()) released.no_split = false;
}

int NativeAllocator::pool_uses(PoolId pool) const { return private_pools_.uses(pool); }

void NativeAllocator::set_use_on_oom(PoolId pool, bool use) {
  private_pools_.at(pool).use_on_oom = use;
}

void NativeAllocator::set_no_split(PoolId pool) { private_pools_.at(pool).no_split = true; }

// PyTorch's texts.
std::string NativeAllocator::advice_against_failure(Bytes tried) const {
  if (!config_.expandable_segments || !version_.has_expandable_reserve()) return {};
  const Bytes total = driver_.memory_info().total;
  const Bytes reserve = config_.expandable_size(total);
  if (tried <= total && tried > reserve) {
    return " This allocation exceeds the expandable-segment reserve of " + format_bytes(reserve) +
           " for this stream, and a single allocation cannot span expandable segments. Raise "
           "PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or "
           "expandable_segments_reserve_by_class (or unset it) so that a segment is at least " +
           format_bytes(tried) + ".";
  }
  return " expandable_segments is enabled. If instead the process is running out of virtual "
         "address space (VSZ), expandable segments may be over-reserving VA (each segment reserves "
         "~9/8 of device memory, times the number of streams); reduce it via "
         "PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / "
         "expandable_segments_reserve_by_class.";
}

Bytes NativeAllocator::largest_free_block() const {
  Bytes largest = 0;
  for (const Pool* const pool : {&small_, &large_}) {
    for (const Block* const block : pool->free_blocks()) largest = std::max(largest, block->size);
  }
  return largest;
}

Bytes NativeAllocator::free_in_private_pools() const {
  Bytes bytes = 0;
  for (const auto& [id, pool] : private_pools_) {
    bytes += pool.small.free_bytes() + pool.large.free_bytes();
  }
  return bytes;
}

// --- state as a whole --------------------------------------------------------------------------

Block* NativeAllocator::make_block(Address address, Bytes size, StreamId stream, Pool* pool) {
  Block* const block = objects_.make();
  block->address = address;
  block->size = size;
  block->stream = stream;
  block->pool = pool;
  return block;
}

Block* NativeAllocator::make_first_block(Address address, Bytes size, const Request& request) {
  Block* const block = make_block(address, size, request.stream, request.pool);
  if (version_.ties() != TorchVersion::Ties::address) block->order = ++orders_;
  return block;
}

Block* NativeAllocator::make_piece(const Block* of, Address address, Bytes size) {
  Block* const block = make_block(address, size, of->stream, of->pool);
  block->expandable = of->expandable;
  block->order = version_.ties() == TorchVersion::Ties::block ? ++orders_ : of->order;
  return block;
}

void NativeAllocator::discard_block(Block* block) {
  block->pool = nullptr;
  objects_.recycle(block);
}

std::vector<const Block*> NativeAllocator::segment_heads() const {
  std::vector<const Block*> heads;
  objects_.for_each_slot([&](const Block* block) {
    const bool exists = block->pool != nullptr && block->mapped;
    if (exists && (block->previous == nullptr || !block->previous->mapped)) heads.push_back(block);
  });
  std::sort(heads.begin(), heads.end(),
            [](const Block* a, const Block* b) { return a->address < b->address; });
  return heads;
}

SegmentInfo NativeAllocator::describe(const Block* head) const {
  SegmentInfo segment;
  segment.address = head->address;
  segment.stream = head->stream;
  segment.pool = id_of(*head->pool);
  segment.small = head->pool->small;
  segment.expandable = head->expandable != nullptr;
  segment.context = head->segment_context;
  for (const Block* block = head; block != nullptr && block->mapped; block = block->next) {
    const BlockState state = block->allocated     ? BlockState::active_allocated
                             : block->is_active() ? BlockState::active_pending_free
                                                  : BlockState::inactive;
    segment.total_size += block->size;
    segment.blocks.push_back(
        {block->address, block->size, block->requested, state, block->context});
  }
  return segment;
}

std::vector<SegmentInfo> NativeAllocator::segments() const {
  std::vector<SegmentInfo> result;
  for (const Block* const head : segment_heads()) result.push_back(describe(head));
  return result;
}

void NativeAllocator::check_invariants() const {
  const auto require = [](bool holds, const char* invariant) {
    if (!holds) throw std::logic_error(std::string("broken invariant: ") + invariant);
  };
  Bytes reserved = 0;
  Bytes active = 0;
  Bytes allocated = 0;
  Bytes cached = 0;
  Address end = 0;
  for (const Block* const head : segment_heads()) {
    require(head->address >= end, "segments do not overlap");
    for (const Block* block = head; block != nullptr && block->mapped; block = block->next) {
      const Block* const next = block->next;
      end = block->address + block->size;
      require(block->size > 0 && block->size % AllocatorConfig::kMinBlock == 0,
              "blocks are multiples of 512 bytes");
      require(next == nullptr || next->address == end, "the blocks of a segment leave no gaps");
      require(next == nullptr || next->previous == block, "neighbours know each other");
      require(next == nullptr || block->is_active() || next->is_active() || !next->mapped,
              "two free neighbours are merged");
      reserved += block->size;
      if (block->allocated) allocated += block->size;
      (block->is_active() ? active : cached) += block->size;
    }
  }
  Bytes indexed = small_.free_bytes() + large_.free_bytes() + free_in_private_pools();
  const auto equal = [](Bytes bytes, const PoolStat& stat) {
    return static_cast<std::int64_t>(bytes) == stat.all.current &&
           stat.all.current == stat.small_pool.current + stat.large_pool.current;
  };
  require(indexed == cached, "the pools hold exactly the free blocks");
  require(reserved == reserved_, "reserved is the sum of all blocks");
  require(equal(reserved, statistics_.reserved_bytes), "reserved_bytes is right");
  require(equal(active, statistics_.active_bytes), "active_bytes is right");
  require(equal(allocated, statistics_.allocated_bytes), "allocated_bytes is right");
  require(reserved == active + cached, "reserved == active + cached");
  require(!limit_ || statistics_.reserved_bytes.all.peak >= 0, "peaks are not negative");
}

namespace {

// Blocks that tile their segment, segments that ascend: anything else cannot have been recorded.
void require_possible(const std::vector<SegmentInfo>& segments) {
  constexpr Address kMostAddress = Address{1} << 62;
  constexpr Bytes most = Bytes{1} << 48;
  Address end = 0;
  for (const SegmentInfo& segment : segments) {
    bool possible = segment.address >= end && segment.address < kMostAddress &&
                    segment.total_size > 0 && segment.total_size < most &&
                    segment.total_size % AllocatorConfig::kMinBlock == 0;
    end = segment.address;
    for (const BlockInfo& block : segment.blocks) {
      possible = possible && block.address == end && block.size > 0 &&
                 block.size % AllocatorConfig::kMinBlock == 0 && block.size <= segment.total_size &&
                 block.requested <= block.size;
      end += block.size;
    }
    if (!possible || end != segment.address + segment.total_size) {
      throw std::invalid_argument("the blocks of the segment " + format_address(segment.address) +
                                  " do not make it up");
    }
  }
}

}  // namespace

std::vector<Block*> NativeAllocator::restore(SimulatedDriver& driver,
                                             const std::vector<SegmentInfo>& segments) {
  require_possible(segments);
  std::vector<Block*> active;
  for (const SegmentInfo& segment : segments) {
    if (!segment.pool.is_default() && !private_pools_.contains(segment.pool)) {
      private_pools_.use(segment.pool);
    }
    PrivatePool* const owner =
        segment.pool.is_default() ? nullptr : &private_pools_.at(segment.pool);
    Pool& pool = owner == nullptr ? (segment.small ? small_ : large_)
                                  : (segment.small ? owner->small : owner->large);
    Request request{segment.total_size, segment.total_size, segment.stream, &pool,
                    segment.expandable};
    Block* rest = nullptr;
    if (segment.expandable) {
      driver.feed_reservation(segment.address);
      auto& unmapped = pool.on(segment.stream).unmapped;
      // Ranges of one expandable segment follow each other; the gap between them stays unmapped.
      // Where less is reserved, a stream may have several.
      Block* space = unmapped.empty() ? nullptr : *unmapped.rbegin();
      if (space == nullptr || segment.address >= space->address + space->size) {
        space = make_expandable(request);
      }
      if (space == nullptr) {
        throw std::invalid_argument("an expandable segment is larger than what is reserved");
      }
      if (segment.address > space->address &&
          segment.address + segment.total_size <= space->address + space->size) {
        Block* const gap = space;
        space = make_piece(gap, segment.address, gap->address + gap->size - segment.address);
        space->mapped = false;
        space->previous = gap;
        space->next = gap->next;
        gap->next = space;
        gap->size = segment.address - gap->address;
        unmapped.insert(space);
      }
      if (space->address != segment.address || !map_block(space, segment.total_size) ||
          space->size != segment.total_size) {
        throw std::invalid_argument("an expandable segment cannot be restored at its address");
      }
      pool.erase(space);
      rest = space;
    } else {
      driver.feed_allocation(segment.address, segment.total_size);
      rest = take_new_segment(request, false);
      if (rest == nullptr || rest->address != segment.address) {
        throw std::invalid_argument("a segment cannot be restored at its address");
      }
    }
    driver.forget_fed_addresses();

    Block* tail = rest->next;
    std::vector<Block*> made;
    Block* previous = rest->previous;
    for (const BlockInfo& info : segment.blocks) {
      Block* const block =
          info.address == rest->address ? rest : make_piece(rest, info.address, info.size);
      block->size = info.size;
      block->requested = info.requested;
      block->previous = previous;
      if (previous != nullptr) previous->next = block;
      previous = block;
      block->next = tail;
      made.push_back(block);
    }
    if (tail != nullptr) tail->previous = previous;
    for (std::size_t i = 0; i < made.size(); ++i) {
      Block* const block = made[i];
      if (segment.blocks[i].state == BlockState::inactive) {
        pool.insert(block);
        if (block->is_split() && block->expandable == nullptr) {
          statistics_.inactive_split.increase(pool.small, 1);
          statistics_.inactive_split_bytes.increase(pool.small, block->size);
        }
        continue;
      }
      block->allocated = true;
      active.push_back(block);
      statistics_.allocation.increase(pool.small, 1);
      statistics_.allocated_bytes.increase(pool.small, block->size);
      statistics_.active.increase(pool.small, 1);
      statistics_.active_bytes.increase(pool.small, block->size);
      statistics_.requested_bytes.increase(pool.small, block->requested);
      if (block->size >= config_.max_split_size) statistics_.oversize_allocations.increase(1);
    }
  }
  return active;
}

}  // namespace plimsoll
