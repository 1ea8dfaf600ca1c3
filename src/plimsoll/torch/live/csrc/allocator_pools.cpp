// The allocator's private pools, for CUDA graphs and torch.cuda.MemPool. A checkpoint is the list
// of a pool's live blocks at one moment. To restore it, the allocator frees all blocks that are
// live now and allocates the checkpoint's blocks at their old addresses, because a graph contains
// these addresses.
#include <c10/core/Device.h>

#include <utility>

#include "allocator.h"

namespace plimsoll::live {

namespace {

struct LiveBlock {
  uint64_t address, size, stream;
};

struct PoolState final : torch_allocator::AllocatorState {
  MempoolId_t pool;
  std::vector<LiveBlock> blocks;
};

std::vector<LiveBlock> live_blocks(plimsoll_engine* engine, MempoolId_t pool) {
  struct Search {
    MempoolId_t pool;
    std::vector<LiveBlock> found;
    bool is_any_pending = false;
  } search{pool, {}};
  check(api->segments(
      engine,
      [](void* data, const plimsoll_segment* segment) {
        auto& result = *static_cast<Search*>(data);
        if (torch_pool(segment->pool) != result.pool) return;
        for (uint64_t i = 0; i < segment->block_count; ++i) {
          const auto& block = segment->blocks[i];
          if (block.state == PLIMSOLL_ACTIVE_PENDING_FREE) result.is_any_pending = true;
          if (block.state != PLIMSOLL_ACTIVE_ALLOCATED) continue;
          result.found.push_back({block.address, block.size, segment->stream});
        }
      },
      &search));
  TORCH_CHECK(!search.is_any_pending,
              "a pool has no checkpoint while other streams still use its freed blocks");
  return std::move(search.found);
}

}  // namespace

void Allocator::use_pool(DeviceIndex index, MempoolId_t pool, CustomAllocator allocator) {
  if (allocator != nullptr) custom_pools_.add(index, pool);
  if (custom_pools_.contains(index, pool)) {
    original_->createOrIncrefPool(index, pool, std::move(allocator));
  } else {
    check(api->use_pool(device(index).engine(), engine_pool(pool)));
  }
}

void Allocator::set_use_on_oom(DeviceIndex index, MempoolId_t pool, bool use) {
  if (custom_pools_.contains(index, pool)) {
    original_.set_use_on_oom(index, pool, use);
    custom_pools_.set_use_on_oom(index, pool, use);
  } else {
    check(api->set_pool_option(device(index).engine(), engine_pool(pool), PLIMSOLL_USE_ON_OOM,
                               use ? 1 : 0));
  }
}

void Allocator::set_no_split(DeviceIndex index, MempoolId_t pool) {
  if (custom_pools_.contains(index, pool)) {
    original_.set_no_split(index, pool);
  } else {
    check(api->set_pool_option(device(index).engine(), engine_pool(pool), PLIMSOLL_NO_SPLIT, 1));
  }
}

void Allocator::beginAllocateToPool(DeviceIndex index, MempoolId_t pool,
                                    std::function<bool(cudaStream_t)> filter) {
  using Filter = std::function<bool(cudaStream_t)>;
  if (custom_pools_.contains(index, pool)) {
    original_->beginAllocateToPool(index, pool, filter);
    custom_pools_.begin(index, pool, std::move(filter));
  } else {
    check(api->begin_allocate_to_pool(
        device(index).engine(), engine_pool(pool),
        [](void* data, uint64_t stream) {
          return (*static_cast<Filter*>(data))(static_cast<cudaStream_t>(as_pointer(stream))) ? 1
                                                                                              : 0;
        },
        new Filter(std::move(filter)), [](void* data) { delete static_cast<Filter*>(data); }));
  }
  ++begun_pools_;
}

void Allocator::endAllocateToPool(DeviceIndex index, MempoolId_t pool) {
  if (custom_pools_.contains(index, pool)) {
    original_->endAllocateToPool(index, pool);
    custom_pools_.end(index, pool);
  } else {
    check(api->end_allocate_to_pool(device(index).engine(), engine_pool(pool)));
  }
  --begun_pools_;
}

// Tells the device's engine that a graph capture begins. Tells PyTorch's own allocator too, because
// that allocator serves custom pools.
void Allocator::begin_graph_capture(DeviceIndex index) {
  check(api->begin_graph_capture(device(index).engine()));
  original_.mark_capture(index, true);
}

void Allocator::end_graph_capture(DeviceIndex index) {
  check(api->end_graph_capture(device(index).engine()));
  original_.mark_capture(index, false);
}

void Allocator::releasePool(DeviceIndex index, MempoolId_t pool) {
  if (custom_pools_.contains(index, pool)) {
    original_->releasePool(index, pool);
  } else {
    check(api->release_pool(device(index).engine(), engine_pool(pool)));
  }
}

int Allocator::getPoolUseCount(DeviceIndex index, MempoolId_t pool) {
  if (custom_pools_.contains(index, pool)) return original_->getPoolUseCount(index, pool);
  int uses = 0;
  check(api->pool_uses(device(index).engine(), engine_pool(pool), &uses));
  return uses;
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex index, MempoolId_t pool,
                                         const std::unordered_set<void*>& expected) {
  if (custom_pools_.contains(index, pool)) {
    return original_->checkPoolLiveAllocations(index, pool, expected);
  }
  TORCH_CHECK(getPoolUseCount(index, pool) > 0, "Could not find pool of id");
  size_t count = 0;
  for (const auto& segment : segments(device(index), pool)) {
    uint64_t address = segment.address;
    for (const auto& block : segment.blocks) {
      if (block.allocated) {
        if (!expected.contains(as_pointer(address))) return false;
        ++count;
      }
      address += block.size;
    }
  }
  return count == expected.size();
}

std::shared_ptr<torch_allocator::AllocatorState> Allocator::getCheckpointState(DeviceIndex index,
                                                                               MempoolId_t pool) {
  if (custom_pools_.contains(index, pool)) return original_->getCheckpointState(index, pool);
  TORCH_CHECK(getPoolUseCount(index, pool) > 0, "Could not find pool of id");
  auto state = std::make_shared<PoolState>();
  state->pool = pool;
  state->blocks = live_blocks(device(index).engine(), pool);
  return state;
}

torch_allocator::CheckpointDelta Allocator::setCheckpointPoolState(
    DeviceIndex index, std::shared_ptr<torch_allocator::AllocatorState> state) {
  const auto wanted = std::dynamic_pointer_cast<PoolState>(state);
  if (wanted == nullptr) return original_->setCheckpointPoolState(index, std::move(state));
  plimsoll_engine* engine = device(index).engine();
  const History::Call call(history_, RecordContext::STATE);
  torch_allocator::CheckpointDelta delta;
  for (const auto& block : live_blocks(engine, wanted->pool)) {
    if (sharing_.has_exports()) sharing_.forget(block.address);
    check(api->free(engine, block.address, 0));
    delta.ptrs_freed.push_back(as_pointer(block.address));
  }
  for (const auto& block : wanted->blocks) {
    check(
        api->malloc_at(engine, block.address, block.size, block.stream, engine_pool(wanted->pool)));
    void* pointer = as_pointer(block.address);
    delta.dataptrs_allocd.emplace_back(pointer, pointer, raw_deleter(),
                                       c10::Device(c10::DeviceType::CUDA, index));
  }
  return delta;
}

}  // namespace plimsoll::live
