// The elastic allocator: reserved memory follows allocated memory within a granule or so, because
// memory has no fixed place. It is thread-safe, with a lock for each stream.
//
// A request is served by best fit, to 512 bytes, from the free blocks of its stream, among them one
// of its size whose free has waited for other streams until now. When none is large enough, a place
// is chosen among the stream's addresses, and what it lacks of memory comes, in this order, from
//
//   1. free pieces of the same arena: they are mapped a second time, at the new address, at once.
//      The stream itself orders the reuse, so nobody waits. What is mapped there already, since the
//      piece served there before, costs no call of the driver;
//   2. free pieces of other streams and pools, if the work that used them is known to be done;
//   3. the driver, if the limit allows;
//   4. whatever becomes free once all streams have been waited for.
//
// Only then a request fails. So free memory is never lost to fragmentation, but for the pieces that
// a live block shares with a free one.
//
// Each piece has a home, where it was mapped first. A block for which pieces came together borrows
// them: when it is freed they go home, for their old mappings are kept. So a program that repeats
// itself finds free memory where it found it before, decides as before, and after some steps each
// place that it needs is mapped: then nothing but the books changes. Mappings are removed only
// where others take their addresses, when there are too many, or when memory goes back to the
// driver, and not before the work is done that was queued when they served.
//
// How large new pieces are: many small ones leave little over, few large ones are mapped quickly. A
// request below 64 MiB makes a piece of its own size, as the next one like it will take all of it;
// larger ones are made of pieces in proportion to what is reserved, 2 to 16 MiB. The nearer the
// limit, the finer: no new piece is more than 1/256 of what may still be reserved, for what a piece
// leaves over may be just what the last request lacks.
//
// Where the program or its policy says so, a request is made of shared memory, or of both kinds:
// a request spills when dedicated memory cannot serve it and nothing is to be gained by waiting. It
// gets what dedicated memory is left, and shared memory for the rest.
//
// A private pool gives memory away only when nobody holds it any more, for a graph remembers its
// addresses. Locks are taken in this order: the allocator's `mutex_`, an arena's, another arena's.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic/arena.h"
#include "plimsoll/allocator/elastic/paused_memory.h"
#include "plimsoll/allocator/elastic/place_search.h"
#include "plimsoll/allocator/elastic/placement.h"
#include "plimsoll/allocator/live_allocator.h"
#include "plimsoll/allocator/private_pools.h"
#include "plimsoll/allocator/returned_handles.h"
#include "plimsoll/allocator/waiting_frees.h"

namespace plimsoll {

struct RegionUse {
  Bytes reserved = 0;
  Bytes allocated = 0;
  Bytes shared_reserved = 0;
  Bytes paused = 0;  // under live blocks, off the card
};

class ElasticAllocator final : public Allocator, public LiveAllocator {
 public:
  // Of `config` only the memory fraction counts. The driver must have virtual memory.
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
  [[nodiscard]] std::optional<Location> locate(Address address) const override;
  [[nodiscard]] ExportedMemory export_memory(Address address) override;

  void empty_cache(PoolId pool = {}) override;
  void poll() override;

  void begin_allocate_to_pool(PoolId pool, Filter filter) override;
  void end_allocate_to_pool(PoolId pool) override;
  void begin_graph_capture() override {}  // which the pool says already
  void end_graph_capture() override {}
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
  void set_observer(Observer* observer) override { Allocator::set_observer(observer); }
  [[nodiscard]] std::vector<SegmentInfo> segments() const override;
  void check_invariants() const override;

  void set_spill_policy(SpillPolicy policy);
  [[nodiscard]] SpillPolicy spill_policy() const;
  // Whether any request got shared memory because dedicated was spent; takes no lock.
  [[nodiscard]] bool has_spilled() const { return has_spilled_.load(std::memory_order_relaxed); }
  // The most shared memory that may be reserved; nothing means what the host can lock.
  void set_shared_limit(std::optional<Bytes> limit);
  [[nodiscard]] std::optional<Bytes> shared_limit() const;

  // Brings pieces of shared memory under live blocks that spilled back to the card, at their
  // addresses: at most `most` bytes, and what lived longest first, which is what the next step will
  // use again. Blocks that were exported stay. Waits for the device, and nobody uses the blocks
  // meanwhile. Returns the bytes moved; stops where the memory ends that is not reserved: what is
  // cached, the next step needs. Throws DriverError, with every piece whole in one tier or the
  // other; where a driver does not even map again what it had mapped, that is done with the next
  // request that no free block serves.
  Bytes rebalance(Bytes most);

  // Takes the dedicated memory under a region's live blocks off the card, and gives it to the
  // driver; the blocks keep their addresses, which nobody may touch until `resume`. The content
  // goes to `backup`, or, if that is nowhere, is lost. Waits for the device.
  // Throws std::invalid_argument if there is no such region, it is paused, a block of it was
  // exported, or a graph is captured;
  // HostOutOfMemory; BackupError; DriverError. Then the region goes on as it was, or, if a failing
  // driver lets it not, is paused with its content safe. Returns the bytes that the card got back.
  Bytes pause(RegionId region, Backup backup);
  // Brings it back, with the same content at the same addresses, but for what was freed meanwhile.
  // Throws std::invalid_argument if it is not paused, or a graph is captured; OutOfMemory if the
  // card or the limit has no room; HostOutOfMemory and BackupError if a store cannot be read;
  // DriverError. It is then still paused. Returns the bytes that it took.
  Bytes resume(RegionId region);
  [[nodiscard]] bool is_paused(RegionId region) const;
  // What the region has reserved and allocated; nothing if it never had any memory.
  [[nodiscard]] std::optional<RegionUse> region_use(RegionId region) const;

  // Free memory that only requests can use that fit where it lies, for it shares a piece with a
  // live block; the rest of what is free can move, or go back to the driver. Nothing if there are
  // more free blocks than can be looked at while a program waits.
  [[nodiscard]] std::optional<Bytes> fragments() const;

  // Pieces that were mapped at another address so far.
  [[nodiscard]] std::uint64_t moves() const { return moves_; }

  // Requests up to this size lie among themselves, on pieces of one granule.
  static constexpr Bytes kSmallRequest = AllocatorConfig::kSmallRequest;

 private:
  using Guard = std::lock_guard<SpinLock>;  // of an arena

  static constexpr Bytes kAlignment = 512;
  static constexpr Bytes kLargestOwnPiece = 64 * kMiB;
  static constexpr Bytes kOwnPiecePart = 16;  // of the arena, at most
  static constexpr Bytes kLargestTile = 16 * kMiB;
  static constexpr Bytes kLargestForSmall = 4 * kGranule;  // of the pieces that small requests pin
  static constexpr Bytes kPlenty = 3;  // times a request: what is free then should serve it
  static constexpr Bytes kSmallProgram = 768 * kMiB;  // reserved: below, new pieces are granules
  static constexpr Bytes kTiles = 160;                // to what is reserved
  static constexpr Bytes kRoomParts = 256;            // of what may still be reserved, at most
  // More than any card has, and less than any address.
  static constexpr Bytes kMostRequest = Bytes{1} << 46;
  static constexpr AddressRange kEverywhere{0, std::numeric_limits<Bytes>::max()};
  static constexpr std::size_t kArenaSlots = 64;
  static constexpr std::size_t kMostRetired = 4096;  // addresses of an arena
  static constexpr std::size_t kRetiredAtATime = 32;
  static constexpr std::size_t kMostFreeBlocks = 4096;  // that `fragments` looks at
  static constexpr std::uint64_t kAnyAge = std::numeric_limits<std::uint64_t>::max();

  // A request that no free block serves.
  struct Request {
    Bytes requested = 0;
    Bytes size = 0;  // rounded
    Arena* arena = nullptr;
    MappedSpace* space = nullptr;
    [[nodiscard]] Request in(MappedSpace& other) const { return {requested, size, arena, &other}; }
  };
  struct Source {
    Arena* arena = nullptr;
    MappedSpace* space = nullptr;
    FreePiece piece;
  };
  // What fills a gap: a free piece from elsewhere, or a new one.
  struct Filling {
    Address address = 0;
    Piece piece;
    std::optional<Source> source;
    bool is_mapped = false;  // the piece comes back to where it is still mapped
  };
  // A piece of shared memory that is to come back to the card.
  struct Move {
    std::uint64_t lent = 0;  // of the block that needs it; the lower, the longer it lives
    Arena* arena = nullptr;
    Address address = 0;
    Piece piece;  // the one that is there now
  };
  struct Reservation {
    AddressRange range;
    Arena* arena = nullptr;
  };
  using ReservationTable = std::vector<Reservation>;  // by address

  // --- hot path
  // The default pool's arena of the stream, where it is known that no other is meant.
  [[nodiscard]] Arena* known_arena(StreamId stream) {
    if (has_captures_.load(std::memory_order_acquire) || ThisThread::has_placement()) {
      return nullptr;
    }
    Arena* const arena = slot_of(stream).load(std::memory_order_acquire);
    return arena != nullptr && arena->stream == stream ? arena : nullptr;
  }
  [[nodiscard]] std::atomic<Arena*>& slot_of(StreamId stream) {
    return slots_[(stream * 0x9E3779B97F4A7C15u) >> 58];
  }
  Block* lend(Arena& arena, Block* block, Bytes requested);
  // A block that `borrows` is freed under `mutex_`.
  void free_now(Arena& arena, Block* block);
  void take_back(Block* block);
  Block* take_borrowed(const Request& request);
  void free_later(Arena& arena, Block* block);
  [[nodiscard]] Arena* arena_around(Address address) const;

  // --- the rest; all that follows holds `mutex_`
  Arena& find_arena(StreamId stream);
  void know_region(PoolId pool);
  Arena& arena_of(ElasticPool& pool, StreamId stream);
  // Calls function(Arena&) for each arena of the pool.
  template <typename Function>
  void for_each_arena_of(const ElasticPool& pool, Function function) const {
    for (auto entry = arena_index_.lower_bound({&pool, 0});
         entry != arena_index_.end() && entry->first.first == &pool; ++entry) {
      function(*entry->second);
    }
  }
  Block* grow(const Request& request, bool prefers_shared);
  Block* try_to_grow(const Request& request);
  Block* recall(const Request& request);
  Block* lend_grown(const Request& request);
  void gather(const Request& request);
  Block* spill(const Request& request);
  [[nodiscard]] bool may_gain_by_waiting(const Request& request, Tiers tiers);
  void wait_for_all();
  void wait_for_device();
  Block* take_from_oom_pools(const Request& request);
  bool go_home(MappedSpace& space, const AddressRange& range);
  [[nodiscard]] std::vector<Source> sources_for(const Request& request) const;
  static void add_sources(std::vector<Source>& sources, Arena& arena, std::uint64_t age,
                          Tiers tiers);
  [[nodiscard]] std::optional<Place> place_for(const Request& request,
                                               const std::vector<Source>& sources);
  [[nodiscard]] static std::vector<Filling> revivals(const MappedSpace& space, const Place& place,
                                                     std::vector<Source>& sources);
  [[nodiscard]] Bytes piece_size(const Request& request, Bytes missing, Tier tier) const;
  [[nodiscard]] std::vector<Filling> plan(const Request& request, const std::vector<Gap>& gaps,
                                          std::vector<Source>& sources) const;
  [[nodiscard]] Bytes dedicated_room() const;
  [[nodiscard]] Bytes shared_room() const;
  [[nodiscard]] std::optional<std::vector<Filling>> plan_with_whole_pieces(
      const Request& request, std::vector<Source>& sources);
  [[nodiscard]] bool fill(const Request& request, std::vector<Filling>& fillings,
                          const std::vector<Address>& cleared = {});
  [[nodiscard]] Status clear(MappedSpace& space, const std::vector<Address>& retired);
  [[nodiscard]] Status create(Piece& piece);
  [[nodiscard]] Status create(const Request& request, std::vector<Filling>& fillings,
                              Bytes shared_room);
  [[nodiscard]] Status map(MappedSpace& space, const std::vector<Filling>& fillings);
  void discard_created(const std::vector<Filling>& fillings);
  void commit(const Request& request, const std::vector<Filling>& fillings);
  [[nodiscard]] bool add_reservation(Arena& arena, MappedSpace& space, Bytes size);

  void synchronize_events(const ElasticPool* pool);
  void finish_free(Block* block);
  void finish_frees_of(Arena& arena, Bytes size);
  void mark_idle(Arena& arena, bool wait);
  void clear_retired(Arena& arena);
  void clear_retired(Arena& arena, std::size_t most);
  void bound_retired(Arena& arena);
  void settle();
  void release_cached_memory(PoolId pool);
  void release_free_memory(const ElasticPool& pool);
  void release_free_pieces(Arena& arena);
  void tidy_unused_pools();
  void forget_if_unused(ElasticPool& pool);
  [[nodiscard]] Status unmap(Address address, Bytes size);
  void release(Handle handle);

  void add_reserved(Arena& arena, const MappedSpace& space, const Piece& piece);
  void remove_reserved(Arena& arena, const MappedSpace& space, const Piece& piece);
  void note_piece(Action action, const Arena& arena, Address address, const Piece& piece);
  void note_in_runs(Action action, const Arena& arena, Address address, const Piece& piece);
  void note_run();
  void count_shared(Block& block, Bytes shared);
  [[nodiscard]] SharedMemoryReport shared_memory() const;
  [[nodiscard]] std::vector<Move> moves_within(Bytes room);
  [[nodiscard]] Status move_to_card(std::vector<Move>& moves);
  [[nodiscard]] Status replace(Move& move, Piece& by);
  void map_lost();
  [[nodiscard]] Status clear_scratch();
  [[nodiscard]] ElasticPool& region_at(RegionId region);
  void require_no_capture() const;
  [[nodiscard]] std::vector<PausedPiece> pieces_to_pause(const ElasticPool& pool);
  void drop_freed_pieces(const ElasticPool& pool, PausedMemory& memory);
  void adopt(PausedMemory& memory);
  [[nodiscard]] Bytes free_in_private_pools() const;
  void refresh_statistics() const override;

  TorchVersion version_;
  mutable std::mutex mutex_;
  mutable ConcurrentStatistics counters_;

  ElasticPool default_pool_{PoolId{}};
  PrivatePools<ElasticPool> private_pools_;
  std::deque<Arena> arenas_;
  std::map<std::pair<const ElasticPool*, StreamId>, Arena*> arena_index_;
  std::vector<Arena*> unused_arenas_;
  std::array<std::atomic<Arena*>, kArenaSlots> slots_{};
  // Read without a lock; a table that was replaced stays, for somebody may be reading it.
  std::vector<std::unique_ptr<const ReservationTable>> tables_;
  std::atomic<const ReservationTable*> reservations_{nullptr};

  std::atomic<bool> has_captures_{false};  // private_pools_.is_capturing(), without a lock
  Bytes reserved_ = 0;                     // of both tiers
  Bytes shared_reserved_ = 0;
  std::optional<Bytes> shared_limit_;
  SpillPolicy spill_policy_ = SpillPolicy::strict;
  std::atomic<bool> has_spilled_{false};
  std::uint64_t lent_ = 0;                  // blocks that may be in shared memory, so far
  mutable SpinLock shared_allocated_lock_;  // of the next; threads of all arenas change it
  Stat shared_allocated_;
  std::map<RegionId, PausedMemory> paused_;
  AddressRange scratch_;  // addresses where `move_to_card` fills new memory
  bool is_scratch_mapped_ = false;
  // Pieces under live blocks that a failing driver unmapped and did not map again.
  std::map<Address, const MappedSpace*> lost_;
  std::uint64_t moves_ = 0;
  struct Run {
    Action action = Action::segment_map;
    const Arena* arena = nullptr;
    Address address = 0;
    Piece piece;
  };
  Run run_;  // of pieces that is still to be noted
  WaitingFrees waiting_frees_{driver_, [this](Block* block) { finish_free(block); }};
  ReturnedHandles returned_{driver_};
};

}  // namespace plimsoll
