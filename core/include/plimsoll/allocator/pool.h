// Pools of free blocks. A pool contains the blocks that may serve a request; best fit chooses among
// them.
//
// Small requests (up to 1 MiB) and large ones never share a pool, and neither do the default pool
// and the private ones. Within a pool, blocks of different streams are kept apart. A pool also
// holds the unmapped address space of its expandable segments.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "plimsoll/allocator/best_fit_index.h"
#include "plimsoll/allocator/block.h"
#include "plimsoll/allocator/pool_source.h"
#include "plimsoll/allocator/private_pools.h"

namespace plimsoll {

struct PrivatePool;

// The free blocks of one stream in one pool.
struct StreamBlocks {
  explicit StreamBlocks(StreamId id) : stream(id) {}

  struct ByAddress {
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
  };

  StreamId stream;
  BestFitIndex free;
  std::set<Block*, ByAddress> unmapped;  // unmapped address space of expandable segments
};

struct Pool {
  explicit Pool(bool holds_small, PrivatePool* of = nullptr) : small(holds_small), owner(of) {}

  bool small;
  PrivatePool* owner;          // null for the default pool
  std::uint64_t searches = 0;  // for garbage collection: a free block's age is counted in searches
  std::shared_ptr<PoolSource> source;  // gives the pool its segments; null: the driver does

  StreamBlocks& on(StreamId stream) {
    if (last_ != nullptr && last_->stream == stream) return *last_;
    return find_or_add(stream);
  }

  // Adds a block that is free or unmapped.
  void insert(Block* block) {
    StreamBlocks& blocks = on(block->stream);
    if (!block->mapped) {
      blocks.unmapped.insert(block);
      return;
    }
    block->age_base = searches;
    blocks.free.insert(block);
  }
  void erase(Block* block) {
    StreamBlocks& blocks = on(block->stream);
    if (block->mapped) {
      blocks.free.erase(block);
    } else {
      blocks.unmapped.erase(block);
    }
  }

  // Returns the pool's id, {0, 0} for the default pool.
  [[nodiscard]] PoolId id() const;

  // Returns all free blocks, sorted by stream, then size, then `Block::order`, then address.
  [[nodiscard]] std::vector<Block*> free_blocks() const;
  [[nodiscard]] Bytes free_bytes() const;

 private:
  StreamBlocks& find_or_add(StreamId stream);

  std::vector<std::unique_ptr<StreamBlocks>> streams_;  // in ascending order of the stream
  StreamBlocks* last_ = nullptr;                        // the last one that was looked up
};

struct PrivatePool : PoolBase {
  using PoolBase::PoolBase;

  Pool small{true, this};
  Pool large{false, this};
};

inline PoolId Pool::id() const { return owner != nullptr ? owner->id : PoolId{}; }

}  // namespace plimsoll
