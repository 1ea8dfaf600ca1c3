#include "plimsoll/allocator/wheel/wheel.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace plimsoll {
namespace {

plimsoll_driver* handle_of(Driver& driver) { return reinterpret_cast<plimsoll_driver*>(&driver); }
plimsoll_pool_id id_of(PoolId pool) { return {pool.first, pool.second}; }
PoolId id_of(plimsoll_pool_id pool) { return {pool.first, pool.second}; }

Stat stat_of(const plimsoll_stat& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}
PoolStat stat_of(const plimsoll_pool_stat& stat) {
  return {stat_of(stat.all), stat_of(stat.small_pool), stat_of(stat.large_pool)};
}

std::uint32_t context_at(const std::unordered_map<Address, std::uint32_t>& contexts,
                         Address address) {
  const auto found = contexts.find(address);
  return found == contexts.end() ? 0 : found->second;
}

// Returns the memory fraction that the settings name; 1 if they name none, or if plimsoll does not
// know one of the settings. plimsoll applies the fraction itself, because PyTorch reads it only
// once.
double fraction_in(std::string_view conf, TorchVersion version) {
  try {
    return AllocatorConfig::parse(conf, version).per_process_memory_fraction;
  } catch (const ConfigError&) {
    return 1;
  }
}

}  // namespace

WheelAllocator::WheelAllocator(const plimsoll_wheel_api& api, Driver& driver, std::string_view conf,
                               TorchVersion version, int device)
    : Allocator(driver, device), api_(api), pools_(version) {
  if (api.version != PLIMSOLL_WHEEL_API_VERSION) {
    throw std::invalid_argument("the library of PyTorch's allocator is of another plimsoll");
  }
  if (!conf.empty()) configure(conf);
  const auto observe = [](void* self, const plimsoll_event* event) {
    static_cast<WheelAllocator*>(self)->observe(*event);
  };
  if (api_.open(device_, &driver_api(), handle_of(driver_), observe, this) != PLIMSOLL_SUCCESS) {
    throw std::invalid_argument(api_.last_error());
  }
  if (const double fraction = fraction_in(conf, version); fraction < 1) {
    set_limit(limit_of(fraction, driver.memory_info().total, version));
  }
}

// Gives back to PyTorch's allocator all that this allocator holds: blocks, pools and cached memory.
// PyTorch's allocator stays loaded and may serve the next WheelAllocator.
WheelAllocator::~WheelAllocator() {
  if (api_.close(device_, this) == 0) return;
  for (const auto& [address, block] : live_) (void)api_.free(device_, address);
  for (const auto& [id, pool] : pools_) {
    for (int uses = pool.uses; uses > 0; --uses) (void)api_.release_pool(device_, id_of(id));
  }
  if (was_used_) (void)api_.empty_cache(device_, {});
}

void WheelAllocator::check(int status) const {
  is_stale_ = true;
  if (status != PLIMSOLL_SUCCESS) throw std::runtime_error(api_.last_error());
}

// --- blocks ------------------------------------------------------------------------------------

Block* WheelAllocator::malloc(Bytes size, StreamId stream) {
  Address address = 0;
  const int status = api_.malloc(device_, size, stream, &address);
  is_stale_ = true;
  if (status == PLIMSOLL_OUT_OF_MEMORY) {
    const std::string text = api_.last_error();
    refresh_statistics();
    throw OutOfMemory(report_failure(size, size, 0), text);
  }
  check(status);
  return lent(address, size, stream);
}

Block* WheelAllocator::malloc_at(Address address, Bytes size, StreamId stream, PoolId) {
  check(api_.malloc_at(device_, address, size, stream));
  return lent(address, size, stream);
}

// Makes the block for an address that PyTorch has just allocated. The block's size is the number of
// bytes by which PyTorch's `allocated_bytes` has risen.
Block* WheelAllocator::lent(Address address, Bytes requested, StreamId stream) {
  const PoolStat& now = statistics().allocated_bytes;
  const Bytes small = static_cast<Bytes>(now.small_pool.current) - live_small_;
  const Bytes large = static_cast<Bytes>(now.large_pool.current) - live_large_;
  PrivatePool* const owner = pools_.pool_for(stream);
  Block* const block = objects_.make();
  block->address = address;
  block->size = small + large;
  block->requested = requested;
  block->stream = stream;
  block->pool = owner == nullptr ? (small > 0 ? &small_ : &large_)
                                 : (small > 0 ? &owner->small : &owner->large);
  block->allocated = true;
  block->context = log_.context();
  live_[address] = block;
  was_used_ = true;
  live_small_ += small;
  live_large_ += large;
  return block;
}

void WheelAllocator::free(Block* block) {
  check(api_.free(device_, block->address));
  (block->pool->small ? live_small_ : live_large_) -= block->size;
  live_.erase(block->address);
  objects_.recycle(block);
}

void WheelAllocator::record_stream(Block* block, StreamId stream) {
  check(api_.record_stream(device_, block->address, stream));
}

void WheelAllocator::empty_cache(PoolId pool) { check(api_.empty_cache(device_, id_of(pool))); }

// --- private pools -----------------------------------------------------------------------------

void WheelAllocator::begin_allocate_to_pool(PoolId pool, Filter filter) {
  pools_.begin_capture(pool, filter);
  auto kept = std::make_unique<Filter>(std::move(filter));
  const auto passes = [](void* data, std::uint64_t stream) {
    const Filter& asked = *static_cast<Filter*>(data);
    return !asked || asked(stream) ? 1 : 0;
  };
  const auto drop = [](void* data) { delete static_cast<Filter*>(data); };
  check(api_.begin_allocate_to_pool(device_, id_of(pool), passes, kept.get(), drop));
  (void)kept.release();
}

void WheelAllocator::end_allocate_to_pool(PoolId pool) {
  pools_.end_capture(pool);
  check(api_.end_allocate_to_pool(device_, id_of(pool)));
}

void WheelAllocator::begin_graph_capture() {
  check(api_.set_capturing(device_, 1));
  ++captures_;
}

void WheelAllocator::end_graph_capture() {
  if (captures_ == 0) throw std::invalid_argument("no graph is being captured");
  --captures_;
  check(api_.set_capturing(device_, 0));
}

void WheelAllocator::use_pool(PoolId pool) {
  pools_.use(pool);
  check(api_.use_pool(device_, id_of(pool)));
}

void WheelAllocator::release_pool(PoolId pool) {
  pools_.release(pool);
  check(api_.release_pool(device_, id_of(pool)));
}

void WheelAllocator::set_pool_option(PoolId pool, PoolOption option, bool on) {
  pools_.at(pool).set(option, on);
  const int number = option == PoolOption::use_on_oom ? PLIMSOLL_USE_ON_OOM : PLIMSOLL_NO_SPLIT;
  check(api_.set_pool_option(device_, id_of(pool), number, on ? 1 : 0));
}

// --- limits and settings -----------------------------------------------------------------------

// Sets the limit as a fraction, the only form that PyTorch takes. Adds a quarter of a byte, so that
// PyTorch computes the same limit from the fraction, however PyTorch rounds.
void WheelAllocator::set_limit(std::optional<Bytes> limit) {
  const auto total = static_cast<double>(driver_.memory_info().total);
  const double fraction = limit ? (static_cast<double>(*limit) + 0.25) / total : 1;
  check(api_.set_fraction(device_, std::min(fraction, 1.0)));
  Allocator::set_limit(limit);
}

void WheelAllocator::configure(std::string_view settings) {
  if (api_.configure(std::string(settings).c_str()) != PLIMSOLL_SUCCESS) {
    throw ConfigError(api_.last_error());
  }
}

// --- reports -----------------------------------------------------------------------------------

// Notes an event of PyTorch's allocator, which passes no call stacks. An allocation gets the
// current call stack, and a free gets the stack of the allocation.
void WheelAllocator::observe(const plimsoll_event& event) {
  const auto action = static_cast<Action>(event.action);
  std::uint32_t context = 0;
  switch (action) {
    case Action::alloc: contexts_[event.address] = log_.context(); break;
    case Action::segment_alloc:
    case Action::segment_map: segment_contexts_[event.address] = log_.context(); break;
    case Action::segment_free:
    case Action::segment_unmap: context = context_at(segment_contexts_, event.address); break;
    case Action::free_requested:
    case Action::free_completed: context = context_at(contexts_, event.address); break;
    default: break;
  }
  if (action == Action::free_completed) contexts_.erase(event.address);
  note(action, event.address, event.size, event.stream, id_of(event.pool), context);
}

void WheelAllocator::refresh_statistics() const {
  if (!is_stale_) return;
  plimsoll_statistics from{};
  from.max_split_size = -1;
  auto& by_pool = statistics_.reserved_bytes_by_private_pools;
  by_pool.clear();
  const auto add = [](void* data, plimsoll_pool_id pool, const plimsoll_pool_stat* stat) {
    (*static_cast<std::map<PoolId, PoolStat>*>(data))[id_of(pool)] = stat_of(*stat);
  };
  check(api_.statistics(device_, &from, add, &by_pool));
  statistics_.allocation = stat_of(from.allocation);
  statistics_.segment = stat_of(from.segment);
  statistics_.active = stat_of(from.active);
  statistics_.inactive_split = stat_of(from.inactive_split);
  statistics_.allocated_bytes = stat_of(from.allocated_bytes);
  statistics_.reserved_bytes = stat_of(from.reserved_bytes);
  statistics_.active_bytes = stat_of(from.active_bytes);
  statistics_.inactive_split_bytes = stat_of(from.inactive_split_bytes);
  statistics_.requested_bytes = stat_of(from.requested_bytes);
  statistics_.oversize_allocations = stat_of(from.oversize_allocations);
  statistics_.oversize_segments = stat_of(from.oversize_segments);
  statistics_.num_alloc_retries = from.num_alloc_retries;
  statistics_.num_ooms = from.num_ooms;
  statistics_.num_sync_all_streams = from.num_sync_all_streams;
  statistics_.num_device_alloc = from.num_device_alloc;
  statistics_.num_device_free = from.num_device_free;
  statistics_.num_oom_rejections = from.num_oom_rejections;
  statistics_.max_split_size = from.max_split_size;
  is_stale_ = false;
}

void WheelAllocator::reset_peak_statistics() { check(api_.reset_peak_statistics(device_)); }
void WheelAllocator::reset_accumulated_statistics() {
  check(api_.reset_accumulated_statistics(device_));
}

// Returns the size of the default pool's largest free block. PyTorch's own figure includes private
// pools; if there are any, the segments are searched instead.
Bytes WheelAllocator::largest_free_block() const {
  Bytes largest = 0;
  if (pools_.begin() == pools_.end()) {
    check(api_.largest_free_block(device_, &largest));
    return largest > 1 ? largest : 0;
  }
  for (const SegmentInfo& segment : segments()) {
    if (!segment.pool.is_default()) continue;
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::inactive) largest = std::max(largest, block.size);
    }
  }
  return largest;
}

std::vector<SegmentInfo> WheelAllocator::segments() const {
  struct Visit {
    const WheelAllocator& self;
    std::vector<SegmentInfo> segments;
  } visit{*this, {}};
  const auto add = [](void* data, const plimsoll_segment* from) {
    auto& [self, segments] = *static_cast<Visit*>(data);
    SegmentInfo segment{from->address,
                        from->total_size,
                        from->stream,
                        id_of(from->pool),
                        from->is_small != 0,
                        from->is_expandable != 0,
                        context_at(self.segment_contexts_, from->address),
                        {}};
    for (std::uint64_t i = 0; i < from->block_count; ++i) {
      const plimsoll_block& block = from->blocks[i];
      segment.blocks.push_back({block.address, block.size, block.requested,
                                static_cast<BlockState>(block.state),
                                context_at(self.contexts_, block.address)});
    }
    segments.push_back(std::move(segment));
  };
  check(api_.segments(device_, add, &visit));
  return std::move(visit.segments);
}

void WheelAllocator::check_invariants() const {
  Bytes live = 0;
  for (const auto& [address, block] : live_) live += block->size;
  Bytes allocated = 0;
  Bytes reserved = 0;
  for (const SegmentInfo& segment : segments()) {
    reserved += segment.total_size;
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::active_allocated) allocated += block.size;
    }
  }
  const Statistics& now = statistics();
  if (allocated != live || static_cast<Bytes>(now.allocated_bytes.all.current) != live) {
    throw std::logic_error("broken invariant: live blocks == allocated bytes");
  }
  if (static_cast<Bytes>(now.reserved_bytes.all.current) != reserved) {
    throw std::logic_error("broken invariant: segments == reserved bytes");
  }
}

}  // namespace plimsoll
