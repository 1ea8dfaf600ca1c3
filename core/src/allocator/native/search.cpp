#include "plimsoll/allocator/native/search.h"

#include <stdexcept>
#include <string>

namespace plimsoll {

// Returns the best fit; null if there is none. Free blocks are sorted by (size, order, address).
// The candidate is the first block that is large enough. If it lies in an expandable segment, a
// later block may become the candidate instead. If the candidate breaks the rules of
// max_split_size, the function returns null, even if a later block would obey these rules.
Block* best_fit(const NativeRequest& request, const AllocatorConfig& config) {
  const BestFitIndex& free = request.pool->on(request.stream).free;
  Block* block = free.lower_bound(request.size);
  if (block == nullptr) return nullptr;
  if (block->expandable != nullptr) {
    if (request.expandable) {
      // Returns the size that a block can grow to, with the unmapped space behind it.
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
  const Bytes oversize = config.max_split_size;
  if (request.size < oversize && block->size >= oversize) return nullptr;
  if (request.size >= oversize && block->size >= request.size + config.max_non_split_rounding) {
    return nullptr;
  }
  return block;
}

Block* free_block_around(NativePools& pools, Address address, Bytes size, StreamId stream,
                         PoolId pool) {
  Block* found = nullptr;
  for (const bool is_small : {true, false}) {
    pools.at(pool, is_small).on(stream).free.for_each([&](Block* block) {
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

}  // namespace plimsoll
