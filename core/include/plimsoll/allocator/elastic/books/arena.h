// An arena: the memory of one stream in one pool, with a lock of its own.
//
// An arena has five spaces (mapped_space.h): `shared` for requests that prefer shared memory,
// `spilled` for requests that spilled, `planned` for large requests that a plan places, and `large`
// and `small` for all other requests. Small requests have their own space, so that they never pin a
// large piece. Free pieces move between the spaces without waiting, because all spaces serve the
// same stream. Everything here is guarded by `lock`, unless its comment says otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/books/mapped_space.h"
#include "plimsoll/allocator/elastic/books/placement.h"
#include "plimsoll/allocator/elastic/books/plan_follower.h"
#include "plimsoll/allocator/elastic/books/waiting_sizes.h"
#include "plimsoll/allocator/private_pools.h"
#include "plimsoll/base/address_map.h"
#include "plimsoll/base/spin_lock.h"
#include "plimsoll/events/concurrent_statistics.h"

namespace plimsoll {

struct ElasticPool;

struct alignas(64) Arena {
  Arena(StreamId of, ElasticPool& in, ConcurrentStatistics::Shard& counts)
      : stream(of), pool(&in), shard(counts) {}

  // Locks the arena, and frees its resting block (see `resting`).
  class Guard {
   public:
    explicit Guard(Arena& arena) : guard_(arena.lock) { arena.free_resting(); }

   private:
    std::lock_guard<SpinLock> guard_;
  };

  SpinLock lock;
  StreamId stream;    // constant while the arena has any memory
  ElasticPool* pool;  // constant while the arena has any memory
  ConcurrentStatistics::Shard& shard;
  MappedSpace small{*this, MappedSpace::Kind::small};
  MappedSpace large{*this, MappedSpace::Kind::large};
  MappedSpace planned{*this, MappedSpace::Kind::planned};
  MappedSpace shared{*this, MappedSpace::Kind::large, Tiers::shared};
  MappedSpace spilled{*this, MappedSpace::Kind::large, Tiers::both};
  // Finds the place of each large request in `planned`; unset if the stream has no plan.
  std::optional<PlanFollower> plan;
  // Whether free memory of `planned` may serve other requests, because the plan was dropped or
  // memory is short.
  bool planned_gives = false;
  bool is_plan_known = false;       // whether the arena has asked for its stream's plan
  bool keeps_dropped_area = false;  // a plan was dropped, and `planned` still has free memory
  AddressMap<Block*> live;
  WaitingSizes waiting;  // sizes of freed blocks that other streams still use
  Bytes reserved = 0;    // bytes of the driver's memory in this arena
  struct Borrowed {
    MappedSpace* space = nullptr;
    AddressRange range;
  };
  // The place of the block that was freed last among those that had borrowed pieces (lending.h).
  // Unset once these pieces have gone home or were lent again.
  std::optional<Borrowed> borrowed;

  // The block that was freed last. A request of the same size gets it at once. Every other use of
  // the arena begins by freeing this block to its space.
  Block* resting = nullptr;

  // Each free gets the next age. The stream no longer uses memory that was freed at `idle_age` or
  // before, so that memory may go to other streams.
  std::uint64_t age = 0;
  std::uint64_t idle_age = 0;
  // An event on the stream. It comes after all the stream's uses of memory that was freed at `age`
  // or before.
  struct Marker {
    Event event = 0;
    std::uint64_t age = 0;
  };
  std::optional<Marker> marker;

  // An arena has an allowance of pieces that it may take from other arenas. A new arena's allowance
  // is `kTakesAtFirst` pieces. Every `kFreesPerTake` frees add one piece to the allowance. The
  // unused part of the allowance does not grow beyond `kTakesAtFirst` pieces.
  static constexpr std::uint64_t kTakesAtFirst = 512;
  static constexpr std::uint64_t kFreesPerTake = 64;
  // How many pieces of the allowance count as used. The allowance is
  // `kTakesAtFirst + age / kFreesPerTake` pieces. `count_taken` counts one more piece as used. If
  // more than `kTakesAtFirst` pieces are unused, it first counts the surplus as used. Growth sets
  // `taken` to 0 when the driver or the limit refuses new memory.
  std::uint64_t taken = 0;
  void count_taken() { taken = std::max(taken, age / kFreesPerTake) + 1; }

  // Returns a free block, cut to size. Returns null if the request needs more than a change of the
  // records, for example a driver call. This is the hot path: it allocates nothing on the heap.
  Block* take_at_once(Bytes size, bool is_small) {
    MappedSpace& space = space_for(is_small);
    if (!is_small && is_planned()) return take_planned_at_once(size);
    if (resting != nullptr) {
      const bool is_it =
          resting->size == size && resting->space == &space && space.is_where_expected(resting);
      if (is_it) return std::exchange(resting, nullptr);
      free_resting();
    }
    return space.take_at_once(size);
  }
  // Returns whether a plan places the large requests.
  [[nodiscard]] bool is_planned() const { return plan && plan->is_followed(); }
  // Asks the plan for the place of the next request.
  [[nodiscard]] PlanFollower::Answer find_planned(Bytes size) {
    return plan->find(
        size, [this](Address address, Bytes bytes) { return planned.is_unused(address, bytes); });
  }
  // Does what `take_at_once` does, but takes the place that the plan names. Also returns null if
  // the plan's next slot cannot serve the request and freed blocks wait for other streams. One of
  // these blocks may lie in the slot, so Growth then completes the frees whose streams are done.
  Block* take_planned_at_once(Bytes size) {
    free_resting();
    const PlanFollower::Answer answer = find_planned(size);
    if (!answer.is_next && !waiting.is_empty()) return nullptr;
    return answer.address == 0 ? large.take_at_once(size) : planned.take_at(answer.address, size);
  }
  // Tells the plan which block a large request of the default pool got.
  void note_planned(const Block& block) {
    plan->note(block.size, block.address);
    if (!plan->is_followed()) planned_gives = keeps_dropped_area = true;
  }
  // Makes a freed block the resting one. Call this only while no block rests.
  void rest(Block* block) {
    block->age_base = ++age;
    resting = block;
  }
  void free_resting() {
    if (resting == nullptr) return;
    Block* const block = std::exchange(resting, nullptr);
    block->space->free(block, block->age_base);
  }

  // Returns the live block that begins at the address; null if none does.
  [[nodiscard]] Block* live_at(Address address) const {
    Block* const* const found = live.find(address);
    return found == nullptr ? nullptr : *found;
  }
  [[nodiscard]] MappedSpace& space_for(bool is_small) { return is_small ? small : large; }
  [[nodiscard]] std::array<MappedSpace*, 5> spaces() {
    return {&small, &large, &planned, &shared, &spilled};
  }
  [[nodiscard]] std::array<const MappedSpace*, 5> spaces() const {
    return {&small, &large, &planned, &shared, &spilled};
  }
  // Returns whether any free block is large enough for a piece.
  [[nodiscard]] bool has_free_piece() const {
    return std::ranges::any_of(spaces(), [](const MappedSpace* space) {
      const Block* const largest = space->free_blocks().last();
      return largest != nullptr && largest->size >= kGranule;
    });
  }
  // Returns whether arenas of other streams and pools may take memory that was freed at `idle_age`
  // or before.
  [[nodiscard]] bool may_give_to_others() const;
  // Returns whether the arena may take pieces from other arenas before it gets new memory. Streams
  // that take the same pieces from each other in every step would map and unmap for ever. So an
  // arena of the default pool that has taken many pieces gets new memory instead.
  [[nodiscard]] bool may_take_from_others() const;
  // Returns the pieces that may move to other addresses: all pieces in free blocks that were
  // freed at `at_age` or before. Pieces in `planned` may move only if `planned_gives` is set.
  [[nodiscard]] std::vector<FreePiece> free_pieces(std::uint64_t at_age) const {
    std::vector<FreePiece> found;
    for (const MappedSpace* const space : spaces()) {
      if (space != &planned || planned_gives) space->add_free_pieces(at_age, found);
    }
    return found;
  }
  [[nodiscard]] std::size_t retired_count() const {
    std::size_t count = 0;
    for (const MappedSpace* const space : spaces()) count += space->retired_count();
    return count;
  }
  [[nodiscard]] bool has_retired() const { return retired_count() > 0; }
};

// The default pool, or the pool of a CUDA graph, a torch.cuda.MemPool or a region.
struct ElasticPool : PoolBase {
  using PoolBase::PoolBase;

  // Region ids lie far above the numbers that PyTorch gives its pools. The first number is 0
  // because PyTorch lets a graph use a pool only if one of its id's two numbers is 0
  // (aten/src/ATen/cuda/CUDAGraph.cpp).
  [[nodiscard]] static PoolId id_of(RegionId region) { return {0, (1ULL << 48) + region}; }
  [[nodiscard]] static bool is_region(PoolId id) { return id.first == 0 && id.second >> 48 != 0; }

  bool is_paused = false;
  [[nodiscard]] bool is_default() const { return id.is_default(); }
  [[nodiscard]] bool is_region() const { return is_region(id); }
  // Returns whether graphs or MemPools may remember addresses of this pool. `uses` counts these
  // graphs and MemPools. In a region's pool, it also counts the region itself.
  [[nodiscard]] bool is_held() const { return uses > (is_region() ? 1 : 0); }
  void require_not_paused() const {
    if (is_paused) throw std::invalid_argument("the region is paused: it has no memory now");
  }
  // Returns whether memory may leave the pool. Memory must stay while the pool is paused, and while
  // a graph or MemPool holds the pool, because a graph remembers addresses.
  [[nodiscard]] bool may_give() const { return (is_default() || !is_held()) && !is_paused; }
};

inline bool Arena::may_take_from_others() const {
  return !pool->is_default() || taken < kTakesAtFirst + age / kFreesPerTake;
}
inline bool Arena::may_give_to_others() const { return pool->may_give() && idle_age != 0; }

}  // namespace plimsoll
