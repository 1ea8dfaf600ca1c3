#include "plimsoll/allocator/native/segments.h"

#include <algorithm>

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {

Block* Segments::take(const NativeRequest& request) {
  if (request.expandable) return expandable_.take(request);
  const Address address = address_for(request);
  if (address == 0) return nullptr;
  Block* const block = blocks_.make_first(address, request.segment, request.stream, *request.pool);
  block->segment_context = books_.context();
  books_.take_segment(block);
  return block;
}

Address Segments::address_for(const NativeRequest& request) {
  if (PoolSource* const source = request.pool->source.get()) {
    return source->accept(request.segment, request.stream);
  }
  Address address = 0;
  const Status status = driver_.allocate(request.segment, address);
  if (status == Status::out_of_memory) return 0;
  if (status != Status::success) throw DriverError("allocate memory", status, driver_.last_error());
  return address;
}

void Segments::release(Block* block) {
  if (PoolSource* const source = block->pool->source.get()) {
    source->release({block->address, block->size, block->stream});
  } else if (const Status status = driver_.deallocate(block->address); status != Status::success) {
    throw DriverError("free memory", status, driver_.last_error());
  }
  books_.release_segment(block);
  block->pool->erase(block);
  blocks_.forget(block);
}

void Segments::release_free(Pool& pool) {
  std::vector<Block*> expandable;
  for (Block* const block : pool.free_blocks()) {
    if (block->expandable != nullptr) {
      expandable.push_back(block);
    } else if (!block->is_split()) {
      release(block);
    }
  }
  for (Block* const block : expandable) expandable_.release(block);
}

bool Segments::release_oversize(const NativeRequest& request) {
  if (config_.max_split_size == AllocatorConfig::kUnlimited) return false;
  const Bytes needed = std::max(request.size, config_.max_split_size);
  const BestFitIndex& free = request.pool->on(request.stream).free;
  Block* block = free.lower_bound(needed);
  if (block != nullptr && block->expandable == nullptr) {
    release(block);
    return true;
  }
  block = block != nullptr ? free.previous(block) : free.last();
  Bytes released = 0;
  while (block != nullptr && released < needed && block->size >= config_.max_split_size) {
    Block* const smaller = free.previous(block);
    if (block->expandable == nullptr) {
      released += block->size;
      release(block);
    }
    block = smaller;
  }
  return released >= needed;
}

// Returns the blocks to collect: unsplit blocks outside expandable segments. Takes all such blocks
// of at least average age. Repeats this with the remaining blocks, whose average age is lower,
// until it has found enough or finds no more.
std::vector<Block*> Segments::garbage(const Pool& large, Bytes reserved, Bytes threshold) {
  std::vector<Block*> found;
  if (reserved <= threshold) return found;
  const Bytes target = reserved - threshold;
  const auto age = [&](const Block* block) { return large.searches - block->age_base; };
  std::vector<Block*> left = large.free_blocks();
  std::erase_if(left, [](const Block* block) { return block->is_split(); });
  std::uint64_t total_age = 0;
  for (const Block* block : left) total_age += age(block);
  Bytes bytes = 0;
  bool found_any = true;
  while (bytes < target && found_any && !left.empty()) {
    const double average = static_cast<double>(total_age) / static_cast<double>(left.size());
    found_any = false;
    std::erase_if(left, [&](Block* block) {
      if (block->expandable != nullptr || static_cast<double>(age(block)) < average) return false;
      found_any = true;
      bytes += block->size;
      total_age -= age(block);
      found.push_back(block);
      return true;
    });
  }
  return found;
}

}  // namespace plimsoll
