#include <algorithm>
#include <stdexcept>

#include "plimsoll/allocator/native/native.h"

// Reports on the allocator's state: segments, free memory, advice, and the check of the invariants.

namespace plimsoll {
namespace {

// Returns the first block of each segment, sorted by address. In an expandable segment, returns the
// first block of each mapped range.
std::vector<const Block*> segment_heads(const BlockList& blocks) {
  std::vector<const Block*> heads;
  blocks.for_each([&](const Block* block) {
    if (block->mapped && (block->previous == nullptr || !block->previous->mapped))
      heads.push_back(block);
  });
  std::sort(heads.begin(), heads.end(),
            [](const Block* a, const Block* b) { return a->address < b->address; });
  return heads;
}

SegmentInfo describe(const Block* head) {
  SegmentInfo segment;
  segment.address = head->address;
  segment.stream = head->stream;
  segment.pool = head->pool->id();
  segment.small = head->pool->small;
  segment.expandable = head->expandable != nullptr;
  segment.context = head->segment_context;
  segment.number = head->segment_number;
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

}  // namespace

std::vector<SegmentInfo> NativeAllocator::segments() const {
  std::vector<SegmentInfo> result;
  for (const Block* const head : segment_heads(blocks_)) result.push_back(describe(head));
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
  for (const Block* const head : segment_heads(blocks_)) {
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
  const Bytes indexed =
      pools_.small.free_bytes() + pools_.large.free_bytes() + pools_.free_in_privates();
  const auto equal = [](Bytes bytes, const PoolStat& stat) {
    return static_cast<std::int64_t>(bytes) == stat.all.current &&
           stat.all.current == stat.small_pool.current + stat.large_pool.current;
  };
  require(indexed == cached, "the pools hold exactly the free blocks");
  require(reserved == books_.reserved(), "reserved is the sum of all blocks");
  require(equal(reserved, statistics_.reserved_bytes), "reserved_bytes is right");
  require(equal(active, statistics_.active_bytes), "active_bytes is right");
  require(equal(allocated, statistics_.allocated_bytes), "allocated_bytes is right");
  require(reserved == active + cached, "reserved == active + cached");
  for (const PoolStat* const stat :
       {&statistics_.reserved_bytes, &statistics_.active_bytes, &statistics_.allocated_bytes}) {
    require(stat->all.peak >= stat->all.current, "no peak is below what is there now");
  }
}

Bytes NativeAllocator::largest_free_block() const {
  Bytes largest = 0;
  for (const Pool* const pool : {&pools_.small, &pools_.large}) {
    for (const Block* const block : pool->free_blocks()) largest = std::max(largest, block->size);
  }
  return largest;
}

void NativeAllocator::reject(const NativeRequest& request) {
  ++statistics_.num_oom_rejections;
  OutOfMemoryReport report =
      report_failure(request.asked, request.segment, pools_.free_in_privates());
  report.is_rejected = true;
  throw OutOfMemory(report);
}

// Returns advice in PyTorch's own words.
std::string NativeAllocator::advice_against_failure(Bytes tried) const {
  if (!config_.expandable_segments || !version_.knows_its_advice()) return usual_advice(version_);
  if (!version_.has_expandable_reserve()) return {};
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

}  // namespace plimsoll
