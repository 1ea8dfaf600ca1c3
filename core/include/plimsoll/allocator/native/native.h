// PyTorch's caching allocator, rule by rule: the same requests get the same blocks, segments,
// statistics and history as from c10/cuda/CUDACachingAllocator.cpp of PyTorch.
//
// A request is rounded up, sought by best fit among the free blocks of its pool and stream, and
// split off what it finds. When nothing fits, memory comes from the driver, by the segment; when
// the driver or the limit refuses, cached memory goes back to the driver, first a little, then all
// of it, before the request fails.
//
// Here is the order of these steps. The parts that do them: BlockList splits and joins blocks,
// NativePools holds the free ones, `best_fit` chooses among them, Segments and ExpandableMemory
// take memory and give it back, Books counts and notes it all.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/block_list.h"
#include "plimsoll/allocator/native/books.h"
#include "plimsoll/allocator/native/pools.h"
#include "plimsoll/allocator/native/search.h"
#include "plimsoll/allocator/native/segments.h"
#include "plimsoll/allocator/waiting_frees.h"

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
  void set_pool_option(PoolId pool, PoolOption option, bool on) override;

  [[nodiscard]] Bytes largest_free_block() const override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

  // Serves later requests by this configuration. The limit stays: PyTorch takes it from the
  // configuration when it makes the allocator, and so the statistic max_split_size.
  void configure(const AllocatorConfig& config) { config_ = config; }
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

 protected:
  [[nodiscard]] std::string advice_against_failure(Bytes tried) const override;

 private:
  friend class StateRestorer;  // a replay's: puts a recorded state in place

  [[nodiscard]] NativeRequest request_for(Bytes size, StreamId stream);
  // Of PyTorch's condition that the current stream is part of the capture nothing is known here.
  [[nodiscard]] bool is_capturing() const {
    return version_.tells_captures_from_pools() ? graph_captures_ > 0
                                                : pools_.privates.is_capturing();
  }
  [[nodiscard]] bool collects_garbage() const {
    return limit_.has_value() && config_.garbage_collection_threshold > 0;
  }
  [[nodiscard]] std::vector<Block*> garbage() const;
  // Whether the limit refuses, once `collected` bytes have gone back to the driver.
  [[nodiscard]] bool exceeds_limit(const NativeRequest& request, Bytes collected = 0) const {
    return limit_.has_value() && books_.reserved() - collected + request.segment > *limit_;
  }
  // Whether throw_on_cudamalloc_oom makes the driver's refusal, which is certain, final. The limit
  // refuses before that, in the ordinary way.
  [[nodiscard]] bool is_rejected(const NativeRequest& request, Bytes collected = 0) const;

  // Fails as PyTorch does where `is_rejected`: no event, and no out-of-memory error is counted.
  [[noreturn]] void reject(const NativeRequest& request);

  // Each returns a block that is in no pool, or null.
  Block* take_free_block(const NativeRequest& request);
  Block* take_from_oom_pools(NativeRequest& request);
  Block* take_new_segment(const NativeRequest& request, bool is_retry);

  // The first `size` bytes of a block that is in no pool, which may be all; the rest is free then.
  Block* lend(Block* block, Bytes size, Bytes requested);
  void complete_free(Block* block);
  void synchronize_events(const PrivatePool* pool);
  void release_cached_blocks(PoolId pool);

  AllocatorConfig config_;
  TorchVersion version_;
  NativePools pools_{version_};
  BlockList blocks_{version_};
  Books books_{statistics_, log_, config_, version_};
  Segments segments_{driver_, config_, blocks_, books_};
  WaitingFrees waiting_frees_{driver_, [this](Block* block) { complete_free(block); }};
  int graph_captures_ = 0;
};

}  // namespace plimsoll
