// The elastic allocator maps the card's memory at whatever addresses the requests need. So the peak
// of reserved memory is usually less than 3 % above the peak of allocated memory (docs/elastic.md).
// The allocator is thread-safe, with a lock for each stream.
//
// Problem. PyTorch's segments stay where they are. When a program frees blocks A and C of 20 MiB
// around a live block B, 40 MiB are free, but not in a row, so a request for 40 MiB takes new
// memory.
//
// Example. The elastic allocator reserves addresses for the whole card and maps pieces, here of
// 2 MiB, where they are needed. Addresses without memory are a hole. Each column is 20 MiB:
//
//   A, B, C are lent       | A       | B | C    | hole    |
//   A and C are freed      | free    | B | free | hole    |
//   D of 40 MiB is lent    | retired | B |       D        |   A's ten pieces are mapped here too
//   D is freed             | retired | B |      free      |
//   A is lent again        | A       | B | free | retired |   its pieces return: no driver call
//   A is freed, D is lent  | retired | B |       D        |   they return here: no driver call
//
// Approach. A piece's home is where it was mapped first. A block borrows the pieces that were
// brought together for it. Meanwhile the home addresses of these pieces are retired. A retired
// address serves no request, but its old mapping stays. So the pieces can return home without a
// driver call after the block is freed. A program that repeats its steps finds free memory where
// the last step found it, and each request gets the same address as in the last step. After some
// steps no driver calls are needed: only the allocator's records (books/) change. The allocator
// unmaps an old mapping if another piece takes its addresses, if there are too many old mappings,
// or if memory is released to the driver. It does so only after the work that used the addresses is
// done.
//
// - books/ records which addresses are used, free, retired or a hole, and which pieces lie there
//   (mapped_space.h has the picture). books/ also has an Arena for each stream, Lending, and the
//   Ledger.
// - plan/ reads books/ and returns a Plan: where the request is to lie (place_search.h), which
//   pieces fill the place (plan.h), and how large new ones are (piece_sizes.h).
// - apply/ carries a plan out, whole or not at all (applier.h), and tries one way after another to
//   serve a request (growth.h). It handles queued work, release, tiers and paused regions, and
//   makes all calls of the driver.
//
// Each folder uses only those before it: books/ uses neither plan/ nor apply/. A request that no
// free block can serve takes this way:
//
//   malloc -> Growth::serve -> plan_return: can returning pieces fill the whole place?
//   if not: Growth::look_at_queued_work -> plan_growth
//   then: Applier::apply -> Lending::lend
//
// With a plan of the whole program (planning/program_plan.h) a large request lies where the plan
// says. Each stream has an area, a range of addresses for planned requests only.
// books/plan_follower.h finds the place in the area, and plan/planned_area.h decides what is mapped
// there. If the place is not free, the request is served as if there were no plan.
//
// Limits. A live block that shares a piece with a free one keeps the whole piece from moving. A
// private pool gives memory away only once the program has released the pool, because a graph
// remembers the pool's addresses. A program whose sizes never recur moves pieces for ever.
// docs/elastic.md has figures.
//
// Locks are taken in this order: `mutex_`, the arena of the request, other arenas, and, last, a
// lock of the driver, the history or the counters. The hot path takes only its arena's lock.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic/apply/growth.h"
#include "plimsoll/allocator/elastic/apply/pausing.h"
#include "plimsoll/allocator/elastic/apply/tier_mover.h"
#include "plimsoll/allocator/program_allocator.h"

namespace plimsoll {

class ElasticAllocator final : public Allocator, public ProgramAllocator {
 public:
  // The driver must support virtual memory. The allocator reads only one setting from `config`: the
  // memory fraction.
  ElasticAllocator(Driver& driver, const AllocatorConfig& config, TorchVersion version = {},
                   int device = 0);
  ~ElasticAllocator() override;

  Block* malloc(Bytes size, StreamId stream) override;
  Block* malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) override;
  void free(Block* block) override;
  void record_stream(Block* block, StreamId stream) override;

  Address allocate(Bytes size, StreamId stream) override { return malloc(size, stream)->address; }
  void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) override {
    malloc_at(address, size, stream, pool);
  }
  bool free(Address address) override;
  bool record_stream(Address address, StreamId stream) override;
  [[nodiscard]] std::optional<Bytes> block_size(Address address) const override;
  [[nodiscard]] std::optional<Location> locate(Address address) const override;
  [[nodiscard]] ExportedMemory export_memory(Address address) override;
  [[nodiscard]] Held hold() override { return Held(*this); }

  void empty_cache(PoolId pool = {}) override;
  void poll() override;

  void begin_allocate_to_pool(PoolId pool, Filter filter) override;
  void end_allocate_to_pool(PoolId pool) override;
  void use_pool(PoolId pool) override;
  void release_pool(PoolId pool) override;
  [[nodiscard]] int pool_uses(PoolId pool) const override;
  void set_pool_option(PoolId pool, PoolOption option, bool on) override;

  // Sets the most dedicated memory (the card's own, see `Tier`) that may be reserved.
  void set_limit(std::optional<Bytes> limit) override;
  [[nodiscard]] std::optional<Bytes> limit() const override;
  [[nodiscard]] Bytes largest_free_block() const override;
  [[nodiscard]] Statistics statistics() const override;
  void reset_peak_statistics() override;
  void reset_accumulated_statistics() override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

  // Sets the plan. The large requests of each stream lie where the plan says, as long as the
  // program follows it. Private pools are not planned. Throws std::logic_error after the first
  // request.
  void set_plan(std::shared_ptr<const ProgramPlan> plan);
  // Returns how far each planned stream followed its plan. The streams are in the order in which
  // they made their first requests.
  [[nodiscard]] std::vector<PlanUse> plan_use() const;

  void set_spill_policy(SpillPolicy policy);
  [[nodiscard]] SpillPolicy spill_policy() const;
  // Returns whether any request got shared memory (host memory that the GPU can address) because
  // dedicated memory was full. Takes no lock.
  [[nodiscard]] bool has_spilled() const { return growth_.has_spilled(); }
  // Sets the most shared memory that may be reserved. Without a value, only the memory that the
  // host can lock limits it.
  void set_shared_limit(std::optional<Bytes> limit);
  [[nodiscard]] std::optional<Bytes> shared_limit() const;

  // Moves up to `most` bytes of spilled blocks back to the card. The blocks keep their addresses.
  // The blocks that have lived longest move first, because the next step will use them. Exported
  // blocks stay. Waits for the device; the program must not use the blocks during the call. Takes
  // the memory on the card from the driver, and leaves cached memory for the next step. Returns the
  // bytes moved. Throws DriverError if the driver fails. Even after a failure, each piece lies in
  // one tier as a whole. If the driver has unmapped a piece but fails to map it again, the next
  // request that needs new mappings tries again.
  Bytes rebalance(Bytes most);

  // Checks that the region can be paused. Throws std::invalid_argument if it does not exist or is
  // paused already, if one of its blocks was exported, or if a graph is being captured.
  void require_pausable(RegionId region);
  // Takes the dedicated memory under a region's live blocks off the card, and releases it to the
  // driver. The blocks keep their addresses, which the program must not access until `resume`. The
  // content goes to `backup`. If the Backup is empty, the content is lost. Waits for the device.
  // Returns the bytes that the card got back. Throws std::invalid_argument if the region is not
  // pausable. May also throw HostOutOfMemory, BackupError and DriverError. An exception leaves the
  // region unchanged. But if the driver fails to restore the region, the region is paused, and its
  // content is in the backup.
  Bytes pause(RegionId region, Backup backup);
  // Brings a paused region back, with the same content at the same addresses, except for blocks
  // that were freed while the region was paused. Returns the bytes that the region took on the
  // card. Throws std::invalid_argument if the region is not paused, or if a graph is being
  // captured. Throws OutOfMemory if the card or the limit has no room, and DriverError if the
  // driver fails. If the content is in a store, it may also throw HostOutOfMemory or BackupError.
  // After an exception the region is still paused.
  Bytes resume(RegionId region);
  [[nodiscard]] bool is_paused(RegionId region) const;
  // Returns the region's use of memory; nothing if it never had any memory.
  [[nodiscard]] std::optional<RegionUse> region_use(RegionId region) const;

  // Returns how much free memory cannot move because it shares a piece with a live block. Only
  // requests that fit into this memory can use it. All other free memory can move, or be released
  // to the driver. Returns nothing if there are too many free blocks to look at while a program
  // waits.
  [[nodiscard]] std::optional<Bytes> fragments() const;

  // Returns the number of moves of all pieces so far. A piece moves when it begins to serve
  // requests at another address.
  [[nodiscard]] std::uint64_t moves() const { return ledger_.moves(); }

  // Requests up to this size are small. A space (mapped_space.h) never mixes small and large
  // requests. Each piece for small requests is one granule.
  static constexpr Bytes kSmallRequest = AllocatorConfig::kSmallRequest;

 private:
  static constexpr Bytes kAlignment = 512;
  // A larger request fails without a search for memory, because no card has this much. The number
  // is also lower than every address that the driver returns.
  static constexpr Bytes kMostRequest = Bytes{1} << 46;
  static constexpr std::size_t kMostFreeBlocks = 4096;  // the most that `fragments` looks at

  Block* malloc_slowly(Bytes requested, Bytes size, StreamId stream);
  void free_slowly(Block* block);
  void refresh_statistics() const override;

  mutable std::mutex mutex_;
  mutable ConcurrentStatistics counters_;
  // Each member from here on holds references to members above it, so keep this order.
  Ledger ledger_;
  DriverMemory memory_;
  Arenas arenas_;
  Lending lending_;
  QueuedWork work_;
  Release release_;
  Applier applier_;
  Growth growth_;
  TierMover mover_;
  Pausing pausing_;
};

}  // namespace plimsoll
