// PyTorch's caching allocator, rule by rule: the same requests get the same blocks, segments,
// statistics and history as in PyTorch's c10/cuda/CUDACachingAllocator.cpp.
//
// The allocator rounds a request up, looks for the best fit among the free blocks of its pool and
// stream, and splits the request off that block. If no block fits, it takes a segment from the
// driver. If the driver or the limit refuses, it returns cached memory to the driver, first a
// little, then all of it, before the request fails.
//
// This file has the order of these steps. Other parts carry them out: BlockList splits and joins
// blocks, NativePools holds the free ones, `best_fit` chooses among them, Segments and
// ExpandableMemory take memory and return it, Books counts and notes everything.
#pragma once

#include <memory>
#include <optional>
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
  // Makes the pool take its later segments from `source` instead of the driver, and return them to
  // `source`. The source calls functions of the program (pool_source.h). Throws
  // std::invalid_argument if the pool does not exist.
  void set_pool_source(PoolId pool, std::shared_ptr<PoolSource> source);

  // A segment that a request needs. The pool's `source` has to give it.
  struct Lack {
    std::shared_ptr<PoolSource> source;
    Bytes size = 0;
    bool exceeds_limit = false;  // the limit forbids it until cached memory has been returned
  };
  // Returns the segment that a malloc of `size` bytes would need from its pool's source. Returns
  // nothing if the pool has no source, or if a free block serves the request.
  [[nodiscard]] std::optional<Lack> lack(Bytes size, StreamId stream);

  [[nodiscard]] Bytes largest_free_block() const override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

  // Serves later requests by this configuration. The memory limit and the statistic max_split_size
  // keep their values, because PyTorch sets both only when it makes the allocator.
  void configure(const AllocatorConfig& config) { config_ = config; }
  [[nodiscard]] const AllocatorConfig& config() const { return config_; }
  [[nodiscard]] TorchVersion version() const { return version_; }

  // The outcome that a malloc would have now; `outlook` changes nothing.
  enum class Outlook : std::uint8_t {
    cached,    // a free block serves it
    grows,     // the driver is called, and has the memory
    collects,  // a new segment serves it, after garbage goes back to the driver
    refused,   // the driver or the limit refuses at first, so cached memory goes back
    rejected,  // it exceeds the memory fraction, and throw_on_cudamalloc_oom forbids a retry
  };
  [[nodiscard]] Outlook outlook(Bytes size, StreamId stream);

 protected:
  [[nodiscard]] std::string advice_against_failure(Bytes tried) const override;

 private:
  friend class StateRestorer;  // lets a replay put a recorded state in place

  [[nodiscard]] NativeRequest request_for(Bytes size, StreamId stream);
  // Returns whether a capture is running. PyTorch also requires that the current stream is part of
  // the capture; the allocator cannot know this here.
  [[nodiscard]] bool is_capturing() const {
    return version_.tells_captures_from_pools() ? graph_captures_ > 0
                                                : pools_.privates.is_capturing();
  }
  [[nodiscard]] bool collects_garbage() const {
    return limit_.has_value() && config_.garbage_collection_threshold > 0;
  }
  [[nodiscard]] std::vector<Block*> garbage() const;
  // Returns whether the limit refuses the request even after `collected` bytes have gone back to
  // the driver.
  [[nodiscard]] bool exceeds_limit(const NativeRequest& request, Bytes collected = 0) const {
    return limit_.has_value() && books_.reserved() - collected + request.segment > *limit_;
  }
  // Returns whether the option throw_on_cudamalloc_oom rejects the request: a new segment would
  // exceed the configuration's memory fraction, even after `collected` bytes have gone back to the
  // driver. A rejected request fails at once. Returns false if `exceeds_limit` is true: in that
  // case the allocator returns cached memory to the driver, and tries again.
  [[nodiscard]] bool is_rejected(const NativeRequest& request, Bytes collected = 0) const;

  // Throws PyTorch's error for a request for which `is_rejected` is true. Like PyTorch, it records
  // no event and does not count an out-of-memory error.
  [[noreturn]] void reject(const NativeRequest& request);

  // Each returns a block that is in no pool, or null.
  Block* take_free_block(const NativeRequest& request);
  Block* take_from_oom_pools(NativeRequest& request);
  Block* take_new_segment(const NativeRequest& request, bool is_retry);

  // Takes a block that is in no pool. Turns its first `size` bytes into a used block, and puts the
  // rest, if there is one, into the pool as a free block.
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
