#include "plimsoll/allocator/native/native.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

// PyTorch's rules for requests and frees. The functions take their steps in PyTorch's order.

namespace plimsoll {

NativeAllocator::NativeAllocator(Driver& driver, const AllocatorConfig& config,
                                 TorchVersion version, int device)
    : Allocator(driver, device), config_(config), version_(version) {
  statistics_.max_split_size = static_cast<std::int64_t>(config.max_split_size);
  if (const double fraction = config.per_process_memory_fraction; fraction < 1) {
    limit_ = limit_of(fraction, driver.memory_info().total, version);
  }
}

NativeAllocator::~NativeAllocator() = default;

NativeRequest NativeAllocator::request_for(Bytes size, StreamId stream) {
  const Bytes rounded = config_.round_request(size);
  Pool& pool = pools_.serving(rounded, stream);
  const bool expandable = config_.expandable_segments && pool.source == nullptr;
  return {rounded, config_.segment_size(rounded), stream, &pool, expandable, size};
}

// --- malloc ------------------------------------------------------------------------------------

Block* NativeAllocator::malloc(Bytes size, StreamId stream) {
  poll();
  NativeRequest request = request_for(size, stream);
  Block* block = take_free_block(request);
  if (block == nullptr) {
    for (Block* const unused : garbage()) segments_.release(unused);
    block = take_new_segment(request, false);
    if (block == nullptr && version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
    if (block == nullptr && segments_.release_oversize(request)) {
      block = take_new_segment(request, false);
    }
    if (block == nullptr && !is_capturing()) {
      release_cached_blocks({});
      block = take_new_segment(request, true);
    }
    if (block == nullptr && !version_.uses_oom_pools_first()) block = take_from_oom_pools(request);
  }
  if (block == nullptr) {
    fail(size, request.size, request.segment, stream, request.pool->id(),
         pools_.free_in_privates());
  }
  return lend(block, should_split(block, request, config_) ? request.size : block->size, size);
}

Block* NativeAllocator::malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  poll();
  Block* const block = free_block_around(pools_, address, size, stream, pool);
  block->pool->erase(block);
  Block* prefix = nullptr;
  if (const Bytes before = address - block->address; before > 0) {
    if (version_.allocates_prefixes()) {
      prefix = lend(block, before, before);
      block->pool->erase(block);
    } else {
      SplitChange change;
      change.remove(block);
      Block* const front = blocks_.split_front(block, before);
      change.add(front);
      change.add(block);
      front->pool->insert(front);
      books_.split(*front->pool, change);
    }
  }
  Block* const lent = lend(block, size, size);
  if (prefix != nullptr) free(prefix);
  return lent;
}

// Completes pending frees whose events are done. Does nothing inside a capture, where no event may
// be queried.
void NativeAllocator::poll() {
  if (!is_capturing()) waiting_frees_.process_events();
}

NativeAllocator::Outlook NativeAllocator::outlook(Bytes size, StreamId stream) {
  const NativeRequest request = request_for(size, stream);
  if (best_fit(request, config_) != nullptr) return Outlook::cached;
  Bytes collected = 0;
  for (const Block* const block : garbage()) collected += block->size;
  if (exceeds_limit(request, collected)) return Outlook::refused;
  if (is_rejected(request, collected)) return Outlook::rejected;
  if (segments_.growth_for(request) > driver_.memory_info().free + collected)
    return Outlook::refused;
  return collected > 0 ? Outlook::collects : Outlook::grows;
}

std::optional<NativeAllocator::Lack> NativeAllocator::lack(Bytes size, StreamId stream) {
  poll();
  const NativeRequest request = request_for(size, stream);
  if (request.pool->source == nullptr || best_fit(request, config_) != nullptr) return {};
  return Lack{request.pool->source, request.segment, exceeds_limit(request)};
}

bool NativeAllocator::is_rejected(const NativeRequest& request, Bytes collected) const {
  if (!config_.throw_on_cudamalloc_oom || exceeds_limit(request, collected)) return false;
  const auto bound = static_cast<Bytes>(config_.per_process_memory_fraction *
                                        static_cast<double>(driver_.memory_info().total));
  return books_.reserved() - collected + request.segment > bound;
}

Block* NativeAllocator::take_free_block(const NativeRequest& request) {
  if (collects_garbage()) ++request.pool->searches;
  Block* const block = best_fit(request, config_);
  if (block != nullptr) request.pool->erase(block);
  return block;
}

Block* NativeAllocator::take_from_oom_pools(NativeRequest& request) {
  if (request.pool->owner != nullptr) return nullptr;
  for (const PoolId id : pools_.emergency.ids()) {
    PrivatePool& pool = pools_.privates.at(id);
    NativeRequest inside = request;
    inside.pool = request.pool->small ? &pool.small : &pool.large;
    if (version_.keeps_growing_memory_on_oom()) inside.expandable = false;
    if (Block* const block = take_free_block(inside)) {
      request = inside;
      return block;
    }
  }
  return nullptr;
}

Block* NativeAllocator::take_new_segment(const NativeRequest& request, bool is_retry) {
  if (is_retry) ++statistics_.num_alloc_retries;
  if (exceeds_limit(request)) return nullptr;
  if (is_rejected(request)) reject(request);
  return segments_.take(request);
}

Block* NativeAllocator::lend(Block* block, Bytes size, Bytes requested) {
  Pool& pool = *block->pool;
  SplitChange change;
  change.remove(block);
  if (size < block->size) {
    // The front becomes a new Block object. The rest stays in the old object, whose `requested`
    // still has the value of its last use.
    Block* const rest = block;
    block = blocks_.split_front(rest, size);
    pool.insert(rest);
    change.add(rest);
  }
  books_.split(pool, change);
  block->allocated = true;
  block->requested = requested;
  block->context = log_.context();
  books_.lend(block);
  return block;
}

// --- free --------------------------------------------------------------------------------------

void NativeAllocator::free(Block* block) {
  const bool waits = !block->stream_uses.empty();
  if (waits && is_capturing()) {
    waiting_frees_.defer(block);
  } else if (waits) {
    waiting_frees_.wait(block);
  }
  block->allocated = false;
  books_.request_free(block);
  if (!waits) complete_free(block);
}

void NativeAllocator::record_stream(Block* block, StreamId stream) {
  if (stream == block->stream) return;
  auto& uses = block->stream_uses;
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  if (is_capturing()) waiting_frees_.use_in_capture(block, stream);
}

void NativeAllocator::complete_free(Block* block) {
  books_.complete_free(block);
  block->context = 0;
  block->stream_uses.clear();
  SplitChange change;
  for (Block* const neighbour : {block->previous, block->next}) {
    if (!BlockList::may_join(block, neighbour)) continue;
    change.remove(neighbour);
    blocks_.join(block, neighbour);
  }
  change.add(block);
  block->pool->insert(block);
  books_.split(*block->pool, change);
}

void NativeAllocator::synchronize_events(const PrivatePool* pool) {
  ++statistics_.num_sync_all_streams;
  waiting_frees_.synchronize_events(
      [&](const Block* block) { return pool == nullptr || block->pool->owner == pool; });
}

// --- returning memory to the driver ------------------------------------------------------------

std::vector<Block*> NativeAllocator::garbage() const {
  if (!collects_garbage()) return {};
  const auto threshold =
      static_cast<Bytes>(config_.garbage_collection_threshold * static_cast<double>(*limit_));
  return Segments::garbage(pools_.large, books_.reserved(), threshold);
}

void NativeAllocator::empty_cache(PoolId pool) { release_cached_blocks(pool); }

void NativeAllocator::release_cached_blocks(PoolId pool) {
  segments_.expandable().offer_returned();
  if (pool.is_default() && !is_capturing()) {
    synchronize_events(nullptr);
    segments_.release_free(pools_.large);
    segments_.release_free(pools_.small);
  }
  for (const PoolId id : pools_.unheld()) {
    PrivatePool& candidate = pools_.privates.at(id);
    if (!pool.is_default() && id != pool) continue;
    if (!pool.is_default()) synchronize_events(&candidate);
    segments_.release_free(candidate.small);
    segments_.release_free(candidate.large);
    if (candidate.reserved == 0) pools_.forget(id);
  }
}

// --- private pools -----------------------------------------------------------------------------

void NativeAllocator::begin_allocate_to_pool(PoolId pool, Filter filter) {
  pools_.privates.begin_capture(pool, std::move(filter));
  pools_.released.erase(pool);
}

void NativeAllocator::end_allocate_to_pool(PoolId pool) { pools_.privates.end_capture(pool); }

void NativeAllocator::end_graph_capture() {
  if (graph_captures_ == 0) throw std::invalid_argument("no graph is being captured");
  --graph_captures_;
}

void NativeAllocator::use_pool(PoolId pool) {
  pools_.privates.use(pool);
  pools_.released.erase(pool);
}

void NativeAllocator::release_pool(PoolId pool) {
  pools_.privates.release(pool);
  PrivatePool& released = pools_.privates.at(pool);
  if (released.uses > 0) return;
  pools_.released.insert(pool);
  if (version_.forgets_no_split()) released.no_split = false;
}

void NativeAllocator::set_pool_source(PoolId pool, std::shared_ptr<PoolSource> source) {
  for (const bool is_small : {true, false}) pools_.at(pool, is_small).source = source;
}

int NativeAllocator::pool_uses(PoolId pool) const { return pools_.privates.uses(pool); }

void NativeAllocator::set_pool_option(PoolId pool, PoolOption option, bool on) {
  pools_.privates.at(pool).set(option, on);
  if (option != PoolOption::use_on_oom) return;
  if (on) {
    pools_.emergency.insert(pool);
  } else {
    pools_.emergency.erase(pool);
  }
}

}  // namespace plimsoll
