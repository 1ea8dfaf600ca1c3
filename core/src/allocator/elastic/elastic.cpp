#include "plimsoll/allocator/elastic/elastic.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace plimsoll {

ElasticAllocator::ElasticAllocator(Driver& driver, const AllocatorConfig& config,
                                   TorchVersion version, int device)
    : Allocator(driver, device),
      ledger_(statistics_, log_, version),
      memory_(driver, ledger_),
      arenas_(counters_),
      lending_(log_, ledger_),
      work_(driver, arenas_, lending_, statistics_),
      release_(arenas_, work_, memory_, ledger_, driver),
      applier_(driver, memory_, ledger_),
      growth_(arenas_, work_, release_, memory_, applier_, lending_, ledger_),
      mover_(driver, arenas_, work_, memory_, release_, ledger_, lending_),
      pausing_(driver, arenas_, work_, memory_, release_, ledger_) {
  if (const double fraction = config.per_process_memory_fraction; fraction < 1) {
    set_limit(limit_of(fraction, driver.memory_info().total, version));
  }
}

ElasticAllocator::~ElasticAllocator() = default;

// --- malloc and free ---------------------------------------------------------------------------

Block* ElasticAllocator::malloc(Bytes requested, StreamId stream) {
  const Bytes size = round_up(std::min(requested, kMostRequest + 1), kAlignment);
  if (Arena* const arena = arenas_.known(stream)) {
    const std::lock_guard guard(arena->lock);
    if (!arena->waiting.has(size) && !arena->borrowed) {
      Block* const block = arena->take_at_once(size, size <= kSmallRequest);
      if (block != nullptr) return lending_.lend(block, requested);
    }
  }
  return malloc_slowly(requested, size, stream);
}

Block* ElasticAllocator::malloc_slowly(Bytes requested, Bytes size, StreamId stream) {
  // The lock is held until the request is served. Without the lock, another thread could assign a
  // private pool's arena to another pool.
  const std::lock_guard lock(mutex_);
  if (requested > kMostRequest) {
    refresh_statistics();
    fail(requested, requested, requested, stream, {}, arenas_.free_in_private_pools());
  }
  Arena& arena = arenas_.for_request(stream);
  const bool prefers_shared = ThisThread::placement().prefer == Tier::shared;
  const Request request{requested, size, &arena.space_for(size <= kSmallRequest)};
  if (Block* const block = growth_.serve(request, prefers_shared)) return block;
  refresh_statistics();
  fail(requested, size, size, arena.stream, arena.pool->id, arenas_.free_in_private_pools(),
       growth_.may_use_shared(prefers_shared) ? std::optional(memory_.shared_report())
                                              : std::nullopt);
}

Block* ElasticAllocator::malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  const std::lock_guard lock(mutex_);
  ElasticPool& entry =
      pool.is_default() ? arenas_.default_pool() : arenas_.private_pools().at(pool);
  entry.require_not_paused();
  Arena& arena = arenas_.of(entry, stream);
  const Arena::Guard guard(arena);
  if (size > 0 && size % kAlignment == 0 && address % kAlignment == 0) {
    for (MappedSpace* const space : arena.spaces()) {
      if (Block* const block = space->take_at(address, size)) return lending_.lend(block, size);
    }
  }
  throw std::invalid_argument("no free block has " + std::to_string(size) + " bytes at " +
                              format_address(address));
}

void ElasticAllocator::free(Block* block) {
  Arena& arena = *block->arena;
  {
    const std::lock_guard guard(arena.lock);
    if (block->stream_uses.empty() && !block->borrows) {
      arena.live.erase(block->address);
      lending_.free(block);
      return;
    }
  }
  free_slowly(block);
}

bool ElasticAllocator::free(Address address) {
  Arena* const arena = arenas_.around(address);
  if (arena == nullptr) return false;
  Block* block = nullptr;
  {
    const std::lock_guard guard(arena->lock);
    Block* const* const found = arena->live.find(address);
    if (found == nullptr) return false;
    block = *found;
    if (block->stream_uses.empty() && !block->borrows) {
      arena->live.erase(found);
      lending_.free(block);
      return true;
    }
  }
  free_slowly(block);
  return true;
}

// Frees a block that other streams used, or that borrowed pieces. The borrowed pieces return to
// their home addresses.
void ElasticAllocator::free_slowly(Block* block) {
  const std::lock_guard lock(mutex_);
  if (!block->stream_uses.empty()) {
    work_.wait_to_free(block);
    return;
  }
  const Arena::Guard guard(*block->arena);
  block->arena->live.erase(block->address);
  lending_.free(block);
}

void ElasticAllocator::record_stream(Block* block, StreamId stream) {
  if (stream == block->stream) return;
  if (arenas_.has_captures()) {
    const std::lock_guard lock(mutex_);
    work_.note_use(block, stream);
  }
  const std::lock_guard guard(block->arena->lock);
  auto& uses = block->stream_uses;
  if (std::ranges::find(uses, stream) == uses.end()) uses.push_back(stream);
}

bool ElasticAllocator::record_stream(Address address, StreamId stream) {
  Arena* const arena = arenas_.around(address);
  if (arena == nullptr) return false;
  Block* block = nullptr;
  {
    const std::lock_guard guard(arena->lock);
    block = arena->live_at(address);
  }
  if (block == nullptr) return false;
  record_stream(block, stream);
  return true;
}

void ElasticAllocator::poll() {
  const std::lock_guard lock(mutex_);
  work_.poll();
}

// Releases cached memory to the driver. Does nothing while a graph is captured, because no stream
// can be waited for then.
void ElasticAllocator::empty_cache(PoolId pool) {
  const std::lock_guard lock(mutex_);
  if (arenas_.is_capturing()) return;
  static_cast<void>(mover_.clear_scratch());
  release_.empty_cache(pool);
}

// --- by address --------------------------------------------------------------------------------

std::optional<Bytes> ElasticAllocator::block_size(Address address) const {
  Arena* const arena = arenas_.around(address);
  if (arena == nullptr) return std::nullopt;
  const std::lock_guard guard(arena->lock);
  const Block* const block = arena->live_at(address);
  return block == nullptr ? std::nullopt : std::optional(block->size);
}

std::optional<Location> ElasticAllocator::locate(Address address) const {
  Arena* const arena = arenas_.around(address);
  if (arena == nullptr) return std::nullopt;
  const std::lock_guard guard(arena->lock);
  const Block* block = arena->live_at(address);
  for (const MappedSpace* const space : arena->spaces()) {  // the address may lie inside a block
    if (block == nullptr) block = space->block_at(address);
  }
  if (block == nullptr || !block->allocated) return std::nullopt;
  return Location{block->address, block->size,   block->requested, block->address,
                  block->size,    block->stream, arena->pool->id,  true};
}

ExportedMemory ElasticAllocator::export_memory(Address address) {
  const std::lock_guard lock(mutex_);  // so that no memory moves
  const std::string unknown = format_address(address) + " is not allocated";
  Arena* const arena = arenas_.around(address);
  if (arena == nullptr) throw std::invalid_argument(unknown);
  const std::lock_guard guard(arena->lock);
  Block* const block = arena->live_at(address);
  if (block == nullptr) throw std::invalid_argument(unknown);
  std::vector<const Piece*> pieces;
  block->space->for_each_piece(address, block->size, [&pieces](const Piece& piece) {
    if (!piece.has_memory()) throw std::invalid_argument("memory of a paused region");
    pieces.push_back(&piece);
  });
  ExportedMemory memory;
  memory.offset = address - pieces.front()->address;
  for (const Piece* const piece : pieces) {
    int descriptor = -1;
    const Status status = driver_.export_handle(piece->handle, descriptor);
    if (status != Status::success) {
      for (const auto& exported : memory.pieces) ::close(exported.descriptor);
      throw DriverError("export memory", status, driver_.last_error());
    }
    memory.pieces.push_back({descriptor, piece->size});
  }
  block->exported = true;
  return memory;
}

// --- private pools: those of CUDA graphs, of torch.cuda.MemPool, and regions ---------------------

void ElasticAllocator::begin_allocate_to_pool(PoolId pool, Filter filter) {
  const std::lock_guard lock(mutex_);
  arenas_.know_region(pool);
  if (!arenas_.is_capturing()) release_.tidy_unused_pools();
  arenas_.begin_capture(pool, std::move(filter));
}

void ElasticAllocator::end_allocate_to_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  arenas_.end_capture(pool);
}

void ElasticAllocator::use_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  arenas_.know_region(pool);
  arenas_.private_pools().use(pool);
}

void ElasticAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  arenas_.private_pools().release(pool);
}

int ElasticAllocator::pool_uses(PoolId pool) const {
  const std::lock_guard lock(mutex_);
  return arenas_.private_pools().uses(pool);
}

void ElasticAllocator::set_pool_option(PoolId pool, PoolOption option, bool on) {
  const std::lock_guard lock(mutex_);
  ElasticPool& entry = arenas_.private_pools().at(pool);
  entry.set(option, on);
  arenas_.for_each_of(entry, [&entry](Arena& arena) {
    const Arena::Guard guard(arena);
    for (MappedSpace* const space : arena.spaces()) space->set_no_split(entry.no_split);
  });
}

// --- both tiers --------------------------------------------------------------------------------

void ElasticAllocator::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
  memory_.set_limit(limit);
}

void ElasticAllocator::set_plan(std::shared_ptr<const ProgramPlan> plan) {
  const std::lock_guard lock(mutex_);
  arenas_.set_plan(std::move(plan));
}

std::vector<PlanUse> ElasticAllocator::plan_use() const {
  const std::lock_guard lock(mutex_);
  std::vector<PlanUse> uses;
  for (Arena& arena : arenas_.all()) {
    const Arena::Guard guard(arena);
    if (arena.plan) uses.push_back(arena.plan->use());
  }
  return uses;
}

std::optional<Bytes> ElasticAllocator::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

void ElasticAllocator::set_shared_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  memory_.set_shared_limit(limit);
}

std::optional<Bytes> ElasticAllocator::shared_limit() const {
  const std::lock_guard lock(mutex_);
  return memory_.shared_limit();
}

void ElasticAllocator::set_spill_policy(SpillPolicy policy) {
  const std::lock_guard lock(mutex_);
  growth_.set_spill_policy(policy);
}

SpillPolicy ElasticAllocator::spill_policy() const {
  const std::lock_guard lock(mutex_);
  return growth_.spill_policy();
}

Bytes ElasticAllocator::rebalance(Bytes most) {
  const std::lock_guard lock(mutex_);
  return arenas_.is_capturing() ? 0 : mover_.rebalance(most);
}

void ElasticAllocator::require_pausable(RegionId region) {
  const std::lock_guard lock(mutex_);
  pausing_.require_pausable(region);
}

Bytes ElasticAllocator::pause(RegionId region, Backup backup) {
  const std::lock_guard lock(mutex_);
  static_cast<void>(mover_.clear_scratch());
  return pausing_.pause(region, std::move(backup));
}

Bytes ElasticAllocator::resume(RegionId region) {
  const std::lock_guard lock(mutex_);
  std::optional<Bytes> refused;
  const Bytes size = pausing_.resume(region, refused);
  if (!refused) return size;
  refresh_statistics();
  fail(*refused, *refused, *refused, 0, ElasticPool::id_of(region),
       arenas_.free_in_private_pools());
}

bool ElasticAllocator::is_paused(RegionId region) const {
  const std::lock_guard lock(mutex_);
  return pausing_.is_paused(region);
}

std::optional<RegionUse> ElasticAllocator::region_use(RegionId region) const {
  const std::lock_guard lock(mutex_);
  return pausing_.use_of(region);
}

}  // namespace plimsoll
