#include "plimsoll/allocator/native/expandable_memory.h"

#include <algorithm>
#include <utility>

namespace plimsoll {

// Looks in the stream's expandable segments for the lowest run of free and unmapped blocks that is
// large enough. Returns the first block of the run; null if there is no such run. This block is
// either unmapped, or a free block right before an unmapped one.
Block* ExpandableMemory::place_for(const NativeRequest& request) {
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

Bytes ExpandableMemory::growth_for(const NativeRequest& request) const {
  const Block* block = place_for(request);
  if (block == nullptr) {
    if (size_for(request) < request.size) return AllocatorConfig::kUnlimited;
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

Block* ExpandableMemory::take(const NativeRequest& request) {
  Block* block = place_for(request);
  if (block == nullptr) block = reserve(request);
  if (block == nullptr) return nullptr;
  if (!block->mapped && !map(block, std::min(block->size, request.size))) return nullptr;
  while (block->size < request.size) {
    Block* const unmapped = block->next;
    if (!map(unmapped, std::min(request.size - block->size, unmapped->size))) return nullptr;
    block = unmapped;  // `map` merged the previous block into this one
  }
  request.pool->erase(block);
  return block;
}

Block* ExpandableMemory::reserve(const NativeRequest& request) {
  const Bytes size = size_for(request);
  if (size < request.size) return nullptr;
  auto segment = std::make_unique<ExpandableSegment>(driver_, returned_, request.stream, size,
                                                     page_size(*request.pool));
  Block* const all =
      blocks_.make_first(segment->address(), segment->size(), request.stream, *request.pool);
  all->mapped = false;
  all->expandable = segment.get();
  segments_.push_back(std::move(segment));
  request.pool->insert(all);
  return all;
}

bool ExpandableMemory::map(Block* block, Bytes size) {
  const Bytes mapped = block->expandable->map(block->address, size);
  if (mapped == 0) return false;
  Pool& pool = *block->pool;
  pool.erase(block);
  if (mapped < block->size) pool.insert(blocks_.split_back(block, mapped));
  block->mapped = true;
  const Address start = block->address;
  blocks_.join_neighbours(block);
  pool.insert(block);
  books_.map(block, start, mapped);
  if (block->previous == nullptr && block->segment_context == 0) {
    block->segment_context = books_.context();
  }
  return true;
}

void ExpandableMemory::unmap(Block* block) {
  const auto [address, size] = block->expandable->unmap(block->address, block->size);
  if (size == 0) return;
  Pool& pool = *block->pool;
  pool.erase(block);
  if (block->address < address) {
    pool.insert(blocks_.split_front(block, address - block->address));
  }
  if (size < block->size) pool.insert(blocks_.split_back(block, size));
  block->mapped = false;
  blocks_.join_neighbours(block);
  pool.insert(block);
  books_.unmap(block, address, size);
}

void ExpandableMemory::release(Block* block) {
  unmap(block);
  if (block->is_split() || block->mapped) return;
  const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const auto& candidate) {
    return candidate.get() == block->expandable;
  });
  block->pool->erase(block);
  blocks_.forget(block);
  segments_.erase(segment);
}

}  // namespace plimsoll
