// Which free block serves a request, and whether it is split: PyTorch's best fit. Nothing is
// changed here.
#pragma once

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/pools.h"

namespace plimsoll {

// What a request comes to by the configuration.
struct NativeRequest {
  Bytes size = 0;     // rounded
  Bytes segment = 0;  // what the driver would be asked for
  StreamId stream = 0;
  Pool* pool = nullptr;
  bool expandable = false;
  Bytes asked = 0;  // by the program
};

// The free block that serves the request; null if there is none.
[[nodiscard]] Block* best_fit(const NativeRequest& request, const AllocatorConfig& config);

// Whether the request gets only as much of the block as it needs.
[[nodiscard]] inline bool should_split(const Block* block, const NativeRequest& request,
                                       const AllocatorConfig& config) {
  if (block->pool->owner != nullptr && block->pool->owner->no_split) return false;
  const Bytes rest = block->size - request.size;
  if (block->pool->small || request.expandable) return rest >= AllocatorConfig::kMinBlock;
  return request.size < config.max_split_size && rest > AllocatorConfig::kSmallRequest;
}

// The free block of that pool and stream that holds all these bytes. Throws std::invalid_argument
// if there is none.
[[nodiscard]] Block* free_block_around(NativePools& pools, Address address, Bytes size,
                                       StreamId stream, PoolId pool);

}  // namespace plimsoll
