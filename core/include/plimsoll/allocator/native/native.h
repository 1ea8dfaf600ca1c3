// PyTorch's caching allocator, rule by rule: the same requests get the same blocks, segments,
// statistics and history as from c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.9 to 2.15.
//
// A request is rounded up, sought by best fit among the free blocks of its pool and stream, and
// split off what it finds. When nothing fits, memory comes from the driver, by the segment; when
// the driver or the limit refuses, cached memory goes back to the driver, first a little, then all
// of it, before the request fails.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/expandable_segment.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/allocator/private_pools.h"
#include "plimsoll/allocator/returned_handles.h"
#include "plimsoll/allocator/waiting_frees.h"
#include "plimsoll/base/object_pool.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

class NativeAllocator final : public Allocator {
 public:
  NativeAllocator(Driver& driver, const AllocatorConfig& config, TorchVersion version = {},
                  int device = 0);
  ~NativeAllocator() override;

  Block* malloc(Bytes size, StreamId stream) override;
  Block* malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) override;
  void free(Block* block) override;
  void record_stream(Block* block, StreamId stream) override;
  void empty_cache(PoolId pool = {}) override;
  void poll() override;

  void begin_allocate_to_pool(PoolId pool, Filter filter) override;
  void end_allocate_to_pool(PoolId pool) override;
  void begin_graph_capture() override { ++graph_captures_; }
  void end_graph_capture() override;
  void use_pool(PoolId pool) override;
  void release_pool(PoolId pool) override;
  [[nodiscard]] int pool_uses(PoolId pool) const override;
  void set_use_on_oom(PoolId pool, bool use) override;
  void set_no_split(PoolId pool) override;

  [[nodiscard]] Bytes largest_free_block() const override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

  // A configuration for what follows, as torch.cuda.memory._set_allocator_settings.
  void configure(const AllocatorConfig& config);
  [[nodiscard]] const AllocatorConfig& config() const { return config_; }
  [[nodiscard]] TorchVersion version() const { return version_; }

  // What a malloc of this size would come to now; nothing is changed.
  enum class Outlook : std::uint8_t {
    cached,    // a free block serves it
    grows,     // the driver is asked, and has the memory
    collects,  // likewise, but garbage goes back to the driver first
    refused,   // the driver or the limit refuses at first, so cached memory goes back
    rejected,  // the limit refuses, and throw_on_cudamalloc_oom lets that be the end
  };
  [[nodiscard]] Outlook outlook(Bytes size, StreamId stream);

  // Puts segments, ascending by address, and their blocks in place without asking for any decision,
  // to begin from a recorded state; the allocator must be empty. The blocks of a segment must tile
  // it. The driver is fed the addresses. Returns the active blocks, in address order. Throws
  // std::invalid_argument if the state is not possible.
  std::vector<Block*> restore(SimulatedDriver& driver, const std::vector<SegmentInfo>& segments);

 protected:
  [[nodiscard]] std::string advice_against_failure(Bytes tried) const override;

 private:
  struct Request {
    Bytes size = 0;     // rounded
    Bytes segment = 0;  // what the driver would be asked for
    StreamId stream = 0;
    Pool* pool = nullptr;
    bool expandable = false;
  };

  [[nodiscard]] Request request_for(Bytes size, StreamId stream);
  [[nodiscard]] Pool& pool_for(Bytes size, StreamId stream);
  [[nodiscard]] bool collects_garbage() const {
    return limit_.has_value() && config_.garbage_collection_threshold > 0;
  }
  // Whether the limit refuses, once `collected` bytes have gone back to the driver.
  [[nodiscard]] bool exceeds_limit(const Request& request, Bytes collected = 0) const {
    return limit_.has_value() && reserved_ - collected + request.segment > *limit_;
  }
  // Whether throw_on_cudamalloc_oom makes the driver's refusal, which is certain, final. The limit
  // refuses before that, in the ordinary way. Read, not recorded: alloc_block of 2.12 to 2.15.
  [[nodiscard]] bool is_rejected(const Request& request, Bytes collected = 0) const;
  // Of PyTorch's condition that the current stream is part of the capture nothing is known here.
  [[nodiscard]] bool is_capturing() const {
    return version_.tells_captures_from_pools() ? graph_captures_ > 0
                                                : private_pools_.is_capturing();
  }
  [[nodiscard]] bool should_split(const Block* block, const Request& request) const;

  [[nodiscard]] Block* best_fit(const Request& request) const;
  Block* take_free_block(const Request& request);
  Block* take_from_oom_pools(Request& request);
  Block* take_new_segment(const Request& request, bool is_retry);
  Block* take_expandable(const Request& request);
  [[nodiscard]] Bytes page_size(const Pool& pool) const {
    return pool.small ? AllocatorConfig::kSmallSegment : config_.large_segment_size;
  }
  // What a new expandable segment for the request would have.
  [[nodiscard]] Bytes expandable_size(const Request& request) const {
    return round_up(config_.expandable_size(driver_.memory_info().total), page_size(*request.pool));
  }
  [[nodiscard]] Block* expandable_place(const Request& request) const;
  Block* make_expandable(const Request& request);
  // What the driver would have to give for the request, if no free block serves it.
  [[nodiscard]] Bytes growth_for(const Request& request) const;
  bool map_block(Block* block, Bytes size);
  [[nodiscard]] Block* free_block_around(Address address, Bytes size, StreamId stream, PoolId pool);
  void split_off_front(Block* block, Bytes size);
  Block* lend(Block* block, const Request& request, Bytes requested, bool splits);

  void complete_free(Block* block);
  [[nodiscard]] Bytes merge(Block* block, Block* neighbour);
  void synchronize_events(const PrivatePool* pool);

  [[nodiscard]] Bytes garbage_threshold() const;
  [[nodiscard]] std::vector<Block*> garbage() const;
  bool release_oversize_blocks(const Request& request);
  void release_cached_blocks(PoolId pool);
  void release_free_segments(Pool& pool);
  void release_segment(Block* block);
  void unmap_block(Block* block);
  void release_expandable(Block* block);

  void add_reserved(const Pool& pool, Bytes size);
  void remove_reserved(const Pool& pool, Bytes size);
  [[nodiscard]] Bytes free_in_private_pools() const;
  [[nodiscard]] static PoolId id_of(const Pool& pool) {
    return pool.owner != nullptr ? pool.owner->id : PoolId{};
  }
  Block* make_block(Address address, Bytes size, StreamId stream, Pool* pool);
  // The first block of new memory or address space, and one more of the same memory.
  Block* make_first_block(Address address, Bytes size, const Request& request);
  Block* make_piece(const Block* of, Address address, Bytes size);
  void discard_block(Block* block);
  // The first block of each segment, or of each mapped range of one that can grow, by address.
  [[nodiscard]] std::vector<const Block*> segment_heads() const;
  [[nodiscard]] SegmentInfo describe(const Block* head) const;

  AllocatorConfig config_;
  TorchVersion version_;
  ObjectPool<Block> objects_;
  Pool small_{true};
  Pool large_{false};
  PrivatePools<PrivatePool> private_pools_;
  ReturnedHandles returned_{driver_};
  std::vector<std::unique_ptr<ExpandableSegment>> expandable_segments_;
  WaitingFrees waiting_frees_{driver_, [this](Block* block) { complete_free(block); }};
  Bytes reserved_ = 0;
  int graph_captures_ = 0;
  std::uint32_t orders_ = 0;  // given to blocks, to break ties by
};

}  // namespace plimsoll
