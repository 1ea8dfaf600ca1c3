// Chooses the free block that serves a request and decides whether to split it: PyTorch's best fit.
// Changes nothing.
#pragma once

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/pools.h"

namespace plimsoll {

// A request. The allocator computes `size` and `segment` from `asked` and the configuration.
struct NativeRequest {
  Bytes size = 0;     // the rounded size
  Bytes segment = 0;  // the size of the new segment, if no free block serves the request
  StreamId stream = 0;
  Pool* pool = nullptr;
  bool expandable = false;
  Bytes asked = 0;  // the size that the program requested
};

// Returns the free block that serves the request; null if there is none.
[[nodiscard]] Block* best_fit(const NativeRequest& request, const AllocatorConfig& config);

// Returns whether the block is to be split, so that the request gets only the part that it needs.
[[nodiscard]] inline bool should_split(const Block* block, const NativeRequest& request,
                                       const AllocatorConfig& config) {
  if (block->pool->owner != nullptr && block->pool->owner->no_split) return false;
  const Bytes rest = block->size - request.size;
  if (block->pool->small || request.expandable) return rest >= AllocatorConfig::kMinBlock;
  return request.size < config.max_split_size && rest > AllocatorConfig::kSmallRequest;
}

// Returns the free block of that pool and stream that contains the whole range. Throws
// std::invalid_argument if there is none.
[[nodiscard]] Block* free_block_around(NativePools& pools, Address address, Bytes size,
                                       StreamId stream, PoolId pool);

}  // namespace plimsoll
