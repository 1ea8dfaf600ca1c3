// The elastic allocator: reserved memory follows allocated memory within a granule or so, because
// memory has no fixed place. It is thread-safe, with a lock for each stream.
//
// Problem. PyTorch's segments stay where they are. When a program frees A and C of 20 MiB around a
// live B, a request for 40 MiB finds 40 MiB free, but nowhere in a row, and takes new memory.
//
// Example. The elastic allocator reserves addresses for the whole card and maps pieces, here of
// 2 MiB, where they are needed. Each column is 20 MiB:
//
//   A, B, C are lent       | A       | B | C    | hole    |
//   A and C are freed      | free    | B | free | hole    |
//   D of 40 MiB is lent    | retired | B |       D        |   A's ten pieces are mapped here too
//   D is freed             | retired | B |      free      |
//   A is lent again        | A       | B | free | retired |   its pieces return: no driver call
//   A is freed, D is lent  | retired | B |       D        |   they return to D: no driver call
//
// Approach. A piece's home is where it was mapped first. A block for which pieces came together
// borrows them; when it is freed they return home, since their old mappings are kept. So a program
// that repeats its steps finds free memory where it found it before, decides as before, and after
// some steps only the books change. Old mappings are unmapped where other pieces take their
// addresses, when there are too many, or when memory is released to the driver, and not before the
// work is done that was queued when they served.
//
//   books/   which addresses are used, free, retired or a hole, and which pieces lie there
//            (mapped_space.h has the picture); an Arena a stream, Lending, the Ledger
//   plan/    reads the books and returns a Plan: where the request is to lie (place_search.h),
//            which pieces fill the place (plan.h), how large new ones are (piece_sizes.h)
//   apply/   carries a plan out, whole or not at all (applier.h); a request's steps (growth.h);
//            queued work, release, tiers, paused regions; all calls of the driver
//
// The folders know each other in this order: books know neither plan nor apply. One growth reads
//
//   malloc: no free block -> Growth::serve -> plan_return: does all its memory return?
//   -> queued work is looked at -> plan_growth -> Applier::apply -> Lending::lend
//
// With a plan of the whole program (planning/program_plan.h) a large request lies where the plan
// says, in an area of its stream that holds nothing else: books/plan_follower.h finds the place,
// and plan/planned_area.h what is mapped there. Without a free place the request goes the usual
// way.
//
// Limits. A live block that shares a piece with a free one holds all of the piece. A private pool
// gives memory away only once it is released, since a graph remembers its addresses. Sizes that
// never recur move pieces for ever. docs/elastic.md has figures.
//
// Locks are taken in this order: `mutex_`, the arena of the request, other arenas, and, last, a
// lock of the driver, the history or the counters. The hot path takes its arena's lock
// alone.
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
  // Only the memory fraction of `config` counts. The driver must have virtual memory.
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

  // The most dedicated memory that may be reserved.
  void set_limit(std::optional<Bytes> limit) override;
  [[nodiscard]] std::optional<Bytes> limit() const override;
  [[nodiscard]] Bytes largest_free_block() const override;
  [[nodiscard]] Statistics statistics() const override;
  void reset_peak_statistics() override;
  void reset_accumulated_statistics() override;
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

  // Large requests of each stream lie where the plan says, as long as the program follows it.
  // Private pools are not planned. Throws std::logic_error after the first request.
  void set_plan(std::shared_ptr<const ProgramPlan> plan);
  // How far each planned stream followed its plan, by the order of their first requests.
  [[nodiscard]] std::vector<PlanUse> plan_use() const;

  void set_spill_policy(SpillPolicy policy);
  [[nodiscard]] SpillPolicy spill_policy() const;
  // Whether any request got shared memory because dedicated memory was full; takes no lock.
  [[nodiscard]] bool has_spilled() const { return growth_.has_spilled(); }
  // The most shared memory that may be reserved; nothing means what the host can lock.
  void set_shared_limit(std::optional<Bytes> limit);
  [[nodiscard]] std::optional<Bytes> shared_limit() const;

  // Brings pieces of shared memory under live blocks that spilled back to the card, at their
  // addresses: at most `most` bytes, and what lived longest first, which is what the next step will
  // use again. Blocks that were exported stay. Waits for the device, and nobody uses the blocks
  // meanwhile. Returns the bytes moved; stops where the memory ends that is not reserved: what is
  // cached, the next step needs. Throws DriverError, with every piece whole in one tier or the
  // other. If the driver does not even map again what it had mapped, the next growth tries it
  // again.
  Bytes rebalance(Bytes most);

  // Throws std::invalid_argument if there is no such region, it is paused, a block of it was
  // exported, or a graph is captured.
  void require_pausable(RegionId region);
  // Takes the dedicated memory under a region's live blocks off the card, and gives it to the
  // driver; the blocks keep their addresses, which nobody may touch until `resume`. The content
  // goes to `backup`, or, if that is nowhere, is lost. Waits for the device.
  // Throws std::invalid_argument if the region is not pausable; HostOutOfMemory; BackupError;
  // DriverError. Then the region goes on as it was, or, if a failing
  // driver lets it not, is paused with its content safe. Returns the bytes that the card got back.
  Bytes pause(RegionId region, Backup backup);
  // Brings it back, with the same content at the same addresses, but for what was freed meanwhile.
  // Throws std::invalid_argument if it is not paused, or a graph is captured; OutOfMemory if the
  // card or the limit has no room; HostOutOfMemory and BackupError if a store cannot be read;
  // DriverError. It is then still paused. Returns the bytes that it took.
  Bytes resume(RegionId region);
  [[nodiscard]] bool is_paused(RegionId region) const;
  // The region's reserved and allocated bytes; nothing if it never had any memory.
  [[nodiscard]] std::optional<RegionUse> region_use(RegionId region) const;

  // Free memory that only requests can use that fit where it lies, for it shares a piece with a
  // live block; all other free memory can move, or be released to the driver. Nothing if there are
  // more free blocks than can be looked at while a program waits.
  [[nodiscard]] std::optional<Bytes> fragments() const;

  // Pieces that were mapped at another address so far.
  [[nodiscard]] std::uint64_t moves() const { return ledger_.moves(); }

  // Requests up to this size lie among themselves, on pieces of one granule.
  static constexpr Bytes kSmallRequest = AllocatorConfig::kSmallRequest;

 private:
  static constexpr Bytes kAlignment = 512;
  // More than any card has, and less than any address.
  static constexpr Bytes kMostRequest = Bytes{1} << 46;
  static constexpr std::size_t kMostFreeBlocks = 4096;  // that `fragments` looks at

  Block* malloc_slowly(Bytes requested, Bytes size, StreamId stream);
  void free_slowly(Block* block);
  void refresh_statistics() const override;

  mutable std::mutex mutex_;
  mutable ConcurrentStatistics counters_;
  // Each part from here on knows those above it.
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
