// The elastic allocator's reports (statistics, segments, fragments) and its `check_invariants`.

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/elastic.h"

namespace plimsoll {

void ElasticAllocator::refresh_statistics() const {
  counters_.read(statistics_);
  statistics_.shared_allocated_bytes = lending_.shared_allocated();
}

Statistics ElasticAllocator::statistics() const {
  const std::lock_guard lock(mutex_);
  refresh_statistics();
  return statistics_;
}

void ElasticAllocator::reset_peak_statistics() {
  const std::lock_guard lock(mutex_);
  statistics_.reset_peak();
  counters_.reset_peak();
  lending_.reset_peak();
}

void ElasticAllocator::reset_accumulated_statistics() {
  const std::lock_guard lock(mutex_);
  statistics_.reset_accumulated();
  counters_.reset_accumulated();
  lending_.reset_accumulated();
}

Bytes ElasticAllocator::largest_free_block() const {
  const std::lock_guard lock(mutex_);
  Bytes largest = 0;
  for (Arena& arena : arenas_.all()) {
    if (!arena.pool->is_default()) continue;
    const Arena::Guard guard(arena);
    for (const MappedSpace* const space : arena.spaces()) {
      if (const Block* const block = space->free_blocks().last())
        largest = std::max(largest, block->size);
    }
  }
  return largest;
}

namespace {

BlockState reported_state(const Block* block) {
  return block->allocated     ? BlockState::active_allocated
         : block->is_active() ? BlockState::active_pending_free
                              : BlockState::inactive;
}

// Gives a segment the number of its oldest piece, because the segment began with that piece.
void number(SegmentInfo& segment, const MappedSpace& space) {
  segment.number = std::numeric_limits<std::uint64_t>::max();
  space.for_each_piece(segment.address, segment.total_size, [&segment](const Piece& piece) {
    segment.number = std::min(segment.number, piece.number);
  });
}

}  // namespace

std::optional<Bytes> ElasticAllocator::fragments() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  Bytes free = 0;
  Bytes movable = 0;
  for (Arena& arena : arenas_.all()) {
    const Arena::Guard guard(arena);
    for (const MappedSpace* const space : arena.spaces()) {
      count += space->free_blocks().count();
      if (count > kMostFreeBlocks) return std::nullopt;
      space->free_blocks().for_each([&](const Block* block) { free += block->size; });
      for (const FreePiece& whole : space->free_pieces(kAnyAge)) movable += whole.piece->size;
    }
  }
  return free - movable;
}

std::vector<SegmentInfo> ElasticAllocator::segments() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> result;
  std::size_t numbered = 0;  // how many segments of `result` have a number
  for (Arena& arena : arenas_.all()) {
    const Arena::Guard guard(arena);
    for (const MappedSpace* const space : arena.spaces()) {
      Address end = 0;
      space->for_each_block([&](const Block* block) {
        if (!block->mapped) return;
        if (block->address != end) {
          SegmentInfo& segment = result.emplace_back();
          segment.address = block->address;
          segment.stream = arena.stream;
          segment.pool = arena.pool->id;
          segment.small = space->small();
          segment.expandable = true;
          segment.paused = arena.pool->is_paused;
        }
        end = block->address + block->size;
        const Bytes shared = space->shared_bytes(block->address, block->size);
        result.back().total_size += block->size;
        result.back().shared += shared;
        result.back().blocks.push_back({block->address, block->size, block->requested,
                                        reported_state(block), block->context, shared});
      });
      for (; numbered < result.size(); ++numbered) number(result[numbered], *space);
    }
  }
  std::sort(result.begin(), result.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return result;
}

void ElasticAllocator::check_invariants() const {
  const std::lock_guard lock(mutex_);
  const auto require = [](bool holds, const char* invariant) {
    if (!holds) throw std::logic_error(std::string("broken invariant: ") + invariant);
  };
  Bytes reserved = 0;
  Bytes active = 0;
  Bytes allocated = 0;
  Bytes shared = 0;
  Bytes shared_allocated = 0;
  Bytes paused = 0;
  std::uint64_t pieces = 0;
  for (Arena& arena : arenas_.all()) {
    const Arena::Guard guard(arena);
    std::size_t live = 0;
    WaitingSizes waiting;
    Bytes in_arena = 0;
    for (const MappedSpace* const space : arena.spaces()) {
      space->check_invariants();
      space->for_each_block([&](const Block* block) {
        require(block->arena == &arena && block->space == space, "a block knows where it lies");
        require(block->size % kAlignment == 0, "blocks are multiples of 512 bytes");
        if (!block->mapped) return;
        if (block->is_active()) active += block->size;
        if (block->is_active() && !block->allocated) waiting.add(block->size);
        if (!block->allocated) return;
        allocated += block->size;
        ++live;
        require(arena.live_at(block->address) == block, "a live block is found by its address");
        const Bytes in_shared = space->shared_bytes(block->address, block->size);
        require(block->shared == in_shared, "a block knows how much of it is in shared memory");
        shared_allocated += in_shared;
      });
      space->for_each_piece([&](const Piece& piece) {
        require(may_use(space->tiers(), piece.tier), "each tier serves where it may");
        if (!piece.has_memory()) {
          require(arena.pool->is_paused, "only what is paused is off the card");
          paused += piece.size;
          return;
        }
        in_arena += piece.size;
        ++pieces;
        if (piece.tier == Tier::shared) shared += piece.size;
      });
    }
    require(live == arena.live.size(), "only live blocks are found by address");
    require(waiting == arena.waiting, "the sizes of blocks that wait are known");
    require(arena.idle_age <= arena.age, "a stream is not ahead of its frees");
    require(in_arena == arena.reserved, "an arena's reserved is the sum of its pieces");
    reserved += in_arena;
  }
  refresh_statistics();
  const auto equal = [](std::uint64_t amount, const PoolStat& stat) {
    return static_cast<std::int64_t>(amount) == stat.all.current &&
           stat.all.current == stat.small_pool.current + stat.large_pool.current;
  };
  require(reserved == ledger_.reserved(), "reserved is the sum of all pieces");
  require(shared == ledger_.shared_reserved() &&
              static_cast<std::int64_t>(shared) == statistics_.shared_reserved_bytes.current,
          "shared_reserved_bytes is right");
  require(static_cast<std::int64_t>(shared_allocated) == statistics_.shared_allocated_bytes.current,
          "shared_allocated_bytes is right");
  require(static_cast<std::int64_t>(paused) == statistics_.paused_bytes.current,
          "paused_bytes is right");
  require(equal(reserved, statistics_.reserved_bytes), "reserved_bytes is right");
  require(equal(pieces, statistics_.segment), "a segment is counted for each piece");
  require(equal(active, statistics_.active_bytes), "active_bytes is right");
  require(equal(allocated, statistics_.allocated_bytes), "allocated_bytes is right");
}

}  // namespace plimsoll
