// PyTorch's own allocator, from the libc10_cuda of its wheel, as a plimsoll Allocator.
//
// src/plimsoll/torch/wheel builds and loads a library that contains PyTorch's allocator.
// `wheel_api.h` declares the functions of that library. PyTorch makes all decisions, counters and
// error texts. This class adds what PyTorch does not keep: the number of the call stack that
// requested each block and segment, and how many users each private pool has.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/pool.h"
#include "plimsoll/base/object_pool.h"
#include "plimsoll/wheel_api.h"

namespace plimsoll {

// Returns the driver functions that PyTorch's allocator calls. Each function takes a
// `plimsoll_driver*`, which points to a `Driver`.
[[nodiscard]] const plimsoll_driver_api& driver_api();

class WheelAllocator final : public Allocator {
 public:
  // `api` must outlive the allocator. Throws std::invalid_argument if the library of `api` has
  // another version or refuses to open `device`, and ConfigError if PyTorch does not accept `conf`.
  WheelAllocator(const plimsoll_wheel_api& api, Driver& driver, std::string_view conf,
                 TorchVersion version, int device);
  ~WheelAllocator() override;

  Block* malloc(Bytes size, StreamId stream) override;
  Block* malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) override;
  void free(Block* block) override;
  void record_stream(Block* block, StreamId stream) override;
  // Empties the caches of all GPUs of the process, as PyTorch does.
  void empty_cache(PoolId pool = {}) override;
  // Does nothing: PyTorch checks pending frees only during a request.
  void poll() override {}

  void begin_allocate_to_pool(PoolId pool, Filter filter) override;
  void end_allocate_to_pool(PoolId pool) override;
  void begin_graph_capture() override;
  void end_graph_capture() override;
  void use_pool(PoolId pool) override;
  void release_pool(PoolId pool) override;
  [[nodiscard]] int pool_uses(PoolId pool) const override { return pools_.uses(pool); }
  void set_pool_option(PoolId pool, PoolOption option, bool on) override;

  void set_limit(std::optional<Bytes> limit) override;
  // Applies settings on top of those applied before. Throws ConfigError.
  void configure(std::string_view settings);

  [[nodiscard]] Bytes largest_free_block() const override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;
  void reset_peak_statistics() override;
  void reset_accumulated_statistics() override;

 protected:
  void refresh_statistics() const override;

 private:
  void observe(const plimsoll_event& event);
  void check(int status) const;
  [[nodiscard]] Block* lent(Address address, Bytes requested, StreamId stream);

  const plimsoll_wheel_api& api_;
  Pool small_{true};
  Pool large_{false};
  PrivatePools<PrivatePool> pools_;
  int captures_ = 0;
  ObjectPool<Block> objects_;
  std::unordered_map<Address, Block*> live_;
  // The stack numbers of live blocks and pending frees, keyed by address.
  std::unordered_map<Address, std::uint32_t> contexts_;
  std::unordered_map<Address, std::uint32_t> segment_contexts_;
  Bytes live_small_ = 0;  // bytes of live small blocks
  Bytes live_large_ = 0;
  bool was_used_ = false;
  mutable bool is_stale_ = true;  // whether `statistics_` is out of date
};

}  // namespace plimsoll
