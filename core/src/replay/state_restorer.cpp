#include "plimsoll/replay/state_restorer.h"

#include <stdexcept>

namespace plimsoll {
namespace {

// Throws unless the segments ascend and their blocks fill them, as in every recorded state. The
// requested size of a free block is not checked: it is left from an earlier use of the memory, and
// may be larger than the block.
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
                 (block.state == BlockState::inactive || block.requested <= block.size);
      end += block.size;
    }
    if (!possible || end != segment.address + segment.total_size) {
      throw std::invalid_argument("the blocks of the segment " + format_address(segment.address) +
                                  " do not make it up");
    }
  }
}

}  // namespace

std::vector<Block*> StateRestorer::restore(const std::vector<SegmentInfo>& segments) {
  require_possible(segments);
  std::vector<Block*> active;
  for (const SegmentInfo& segment : segments) {
    if (!segment.pool.is_default() && allocator_.pool_uses(segment.pool) == 0) {
      allocator_.use_pool(segment.pool);
    }
    Pool& pool = allocator_.pools_.at(segment.pool, segment.small);
    const NativeRequest request{segment.total_size, segment.total_size, segment.stream, &pool,
                                segment.expandable};
    Block* rest = segment.expandable ? grow(segment, request) : take(segment, request);
    driver_.forget_fed_addresses();

    std::vector<Block*> blocks;
    for (const BlockInfo& info : segment.blocks) {
      Block* const block = rest;
      if (info.size < block->size) rest = allocator_.blocks_.split_back(block, info.size);
      block->requested = info.requested;
      blocks.push_back(block);
    }
    SplitChange change;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block* const block = blocks[i];
      if (segment.blocks[i].state == BlockState::inactive) {
        pool.insert(block);
        change.add(block);
      } else {
        block->allocated = true;
        allocator_.books_.lend(block);
        active.push_back(block);
      }
    }
    allocator_.books_.split(pool, change);
  }
  return active;
}

// Makes a whole segment at its recorded address, as one block that is in no pool.
Block* StateRestorer::take(const SegmentInfo& segment, const NativeRequest& request) {
  driver_.feed_allocation(segment.address, segment.total_size);
  Block* const block = allocator_.take_new_segment(request, false);
  if (block == nullptr || block->address != segment.address) {
    throw std::invalid_argument("a segment cannot be restored at its address");
  }
  return block;
}

// Makes a mapped range of an expandable segment, as one block that is in no pool. A gap between the
// ranges of an expandable segment stays unmapped. If the range lies above the stream's last
// expandable segment, reserves another expandable segment.
Block* StateRestorer::grow(const SegmentInfo& segment, const NativeRequest& request) {
  driver_.feed_reservation(segment.address);
  ExpandableMemory& expandable = allocator_.segments_.expandable();
  Pool& pool = *request.pool;
  const auto& unmapped = pool.on(segment.stream).unmapped;
  Block* space = unmapped.empty() ? nullptr : *unmapped.rbegin();
  if (space == nullptr || segment.address >= space->address + space->size) {
    space = expandable.reserve(request);
  }
  if (space == nullptr) {
    throw std::invalid_argument("an expandable segment is larger than what is reserved");
  }
  if (segment.address > space->address &&
      segment.address + segment.total_size <= space->address + space->size) {
    space = allocator_.blocks_.split_back(space, segment.address - space->address);
    pool.insert(space);
  }
  if (space->address != segment.address || !expandable.map(space, segment.total_size) ||
      space->size != segment.total_size) {
    throw std::invalid_argument("an expandable segment cannot be restored at its address");
  }
  pool.erase(space);
  return space;
}

}  // namespace plimsoll
