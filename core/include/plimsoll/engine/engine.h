// An engine: an allocator on one GPU, over any driver, that serves a program's requests. It also
// reports the use of memory to the program and its user. `account` sums up the engine's whole life.
//
// Engines on real and on simulated GPUs differ only in the driver. The constructor decides how the
// engine handles threads and what it measures:
//
// - An engine that owns its driver serves threads that run at the same time, and may keep an
//   account. For the account, a second allocator with PyTorch's rules repeats the requests in the
//   background on a simulated GPU of the same size. This second allocator shows how much memory the
//   program would have needed without plimsoll.
// - A shared simulated GPU does not belong to its engine, and other code may call the GPU as well.
//   The engine handles one call at a time, because all GPUs of a simulated machine share one clock.
//   The engine also measures how much of each memory tier is in use, because a driver that moves
//   requests to shared memory ("spills") does not tell the allocator.
//
// Locks are taken in this order: `exclude_calls`, `mutex_`, the allocator's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/host/backup_store.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/allocator/imported_memory.h"
#include "plimsoll/allocator/native/native.h"
#include "plimsoll/allocator/pool_source.h"
#include "plimsoll/allocator/program_allocator.h"
#include "plimsoll/allocator/wheel/wheel.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/engine/spill_watch.h"
#include "plimsoll/replay/shadow.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// Returns a lock to hold around calls of any simulated GPU or of a simulated host. A thread that
// holds this lock must not wait for Python's interpreter lock.
[[nodiscard]] std::unique_lock<std::recursive_mutex> exclude_simulated_gpus();

class Engine final : private Observer {
 public:
  struct Options {
    std::string allocator;  // one of kAllocatorNames
    std::string conf;       // settings in the form of PYTORCH_CUDA_ALLOC_CONF
    TorchVersion version;
    int device = 0;
    bool account = false;
    const plimsoll_wheel_api* wheel = nullptr;  // PyTorch's own allocator, to serve as "native"
  };

  // Takes a `driver` that several threads may call at the same time.
  Engine(std::unique_ptr<Driver> driver, const Options& options);
  // Takes a `gpu` that outlives the engine.
  Engine(SimulatedDriver& gpu, const Options& options);

  // Returns a lock to hold around calls of the driver and the elastic allocator. Where such calls
  // need not exclude each other, the lock is empty.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> exclude_calls() const;
  [[nodiscard]] bool excludes_calls() const { return gpu_ != nullptr; }

  // --- memory: see ProgramAllocator. `context` is the caller's number for the call stack. An
  // engine on a shared simulated GPU passes it to Allocator::set_context, and the allocator stores
  // it in the block and in the TraceEvent. If `context` is empty, the allocator stores the number
  // that it was given last.
  using Context = std::optional<std::uint32_t>;
  [[nodiscard]] Address allocate(Bytes size, StreamId stream, Context context = {});
  void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool);
  bool free(Address address, Context context = {});
  bool record_stream(Address address, StreamId stream);
  [[nodiscard]] std::optional<Bytes> block_size(Address address) const;
  [[nodiscard]] std::optional<Location> locate(Address address) const;
  [[nodiscard]] ExportedMemory export_memory(Address address);
  [[nodiscard]] ImportedMemory& imported() { return imported_; }

  // Locked access to the allocator's functions that take no address.
  class Held {
   public:
    Held(std::unique_lock<std::recursive_mutex> exclusive, ProgramAllocator& allocator)
        : exclusive_(std::move(exclusive)), allocator_(allocator.hold()) {}
    Allocator* operator->() const { return &*allocator_; }

   private:
    std::unique_lock<std::recursive_mutex> exclusive_;
    ProgramAllocator::Held allocator_;
  };
  [[nodiscard]] Held hold() const { return {exclude_calls(), *allocator_}; }
  // Returns the elastic allocator. Throws std::invalid_argument if another allocator serves.
  [[nodiscard]] ElasticAllocator& elastic() const;

  void empty_cache(PoolId pool);
  void release_pool(PoolId pool);
  void set_pool_option(PoolId pool, PoolOption option, bool on);
  // Sets the source of a pool's segments. From now on, the pool's new segments come from the
  // program's function `give` and go back to its function `take_back`; the driver makes none for
  // this pool. Throws std::invalid_argument if there is no such pool, or if the allocator is not
  // `native`.
  void set_pool_source(PoolId pool, PoolSource::Give give, PoolSource::TakeBack take_back);

  // Applies settings that the program makes while it runs, on top of earlier ones. Allocators that
  // follow PyTorch's rules apply them from the next request on; other allocators only check them.
  // Throws ConfigError.
  void configure(std::string_view settings);

  // --- limits: `set_limit` and `set_fraction` set the program's limit, `set_dedicated_limit` sets
  // the user's limit. The lower of the two limits applies; `limit` returns it.
  [[nodiscard]] std::optional<Bytes> limit() const { return hold()->limit(); }
  void set_limit(std::optional<Bytes> limit);
  // Sets the fraction like torch.cuda.set_per_process_memory_fraction.
  void set_fraction(double fraction);
  void set_dedicated_limit(std::optional<Bytes> limit);

  // --- two tiers

  // Returns whether the driver or the allocator may serve a request from shared memory when
  // dedicated memory is full.
  [[nodiscard]] bool may_spill() const;
  // Returns the object that reports the first spill. Throws std::invalid_argument if the driver
  // does not spill and the allocator is not the elastic one.
  [[nodiscard]] SpillWatch& spill_watch();
  // Returns the peak of reserved dedicated memory, measured after each request. Throws
  // std::logic_error unless the engine is on a shared simulated GPU.
  [[nodiscard]] Bytes peak_dedicated() const;
  // Returns the pool of page-locked memory. On real GPUs, all engines of the process share one
  // pool; on a simulated GPU, the engine has its own.
  [[nodiscard]] HostPool& host_pool();
  // Returns the bytes that the pool of page-locked memory holds. On a simulated GPU, returns all
  // page-locked bytes of the simulated machine.
  [[nodiscard]] Bytes host_reserved_bytes() const;
  // Makes a store for the content of paused memory (ElasticAllocator::pause), in the open file with
  // the descriptor `file`. For a simulated GPU, whose memory has no content, the file stays empty.
  [[nodiscard]] std::unique_ptr<BackupStore> store_in(int file) const;

  // --- statistics, segments and events
  [[nodiscard]] Statistics statistics();
  [[nodiscard]] std::vector<SegmentInfo> segments() const;
  void reset_peak_statistics();
  void reset_accumulated_statistics();
  // Sends all events to `listener` from now on, instead of to the earlier listener. Pass null to
  // send them to no listener.
  void listen(std::unique_ptr<Observer> listener);

  [[nodiscard]] Driver& driver() const { return driver_; }
  [[nodiscard]] int device() const { return options_.device; }
  [[nodiscard]] TorchVersion version() const { return options_.version; }
  // Returns a sentence with the reason if the engine does not use the allocator that the program
  // asked for.
  [[nodiscard]] const std::optional<std::string>& fell_back() const { return fell_back_; }

  struct Account {
    Bytes peak_allocated = 0;
    Bytes peak_reserved = 0;
    Bytes peak_shared_reserved = 0;  // the most shared memory that was reserved at any time
    Bytes card_total = 0;
    std::int64_t num_device_alloc = 0;
    std::int64_t num_device_free = 0;
    std::int64_t num_alloc_retries = 0;
    std::int64_t num_ooms = 0;
    // `card_peak` and `torch` are set only if an account was requested. `card_peak` is the most
    // memory that all processes together used on the card. The engine measures this use when it
    // starts, and after each request for which the driver gave memory.
    std::optional<Bytes> card_peak;
    std::optional<ShadowResult> torch;
  };
  // Returns the account of the engine's whole life, even if the program has reset its statistics.
  [[nodiscard]] Account account();

 private:
  Engine(std::unique_ptr<Driver> owned, SimulatedDriver* gpu, const Options& options);

  void observe(const TraceEvent& event) override;
  [[nodiscard]] std::unique_ptr<ProgramAllocator> make_program_allocator();
  Address lend(Bytes size, StreamId stream, Context context);
  struct Offer {
    std::shared_ptr<PoolSource> source;
    Address address = 0;
  };
  // Prepares a request to a pool that has a source. If the request needs a new segment, gets it
  // from the source, offers it to the allocator, and returns the offer. Returns nothing if the
  // request needs no segment, if the source has no memory, or if the segment would exceed the
  // limit.
  [[nodiscard]] std::optional<Offer> offer_segment(Bytes size, StreamId stream);
  [[nodiscard]] std::optional<NativeAllocator::Lack> lack(Bytes size, StreamId stream);
  // Gives released segments back to their sources. Also gives `unused` back if the allocator did
  // not accept it.
  void return_segments(const std::optional<Offer>& unused = {});

  void set_lower_limit();
  void sample_card();
  void choose_observer();

  Options options_;
  SimulatedDriver* gpu_;  // null if the engine owns its driver
  std::unique_ptr<Driver> owned_;
  Driver& driver_;
  ImportedMemory imported_;
  // Declared before the allocator, so that the pool outlives the allocator's paused memory.
  std::optional<HostPool> host_pool_;
  std::optional<std::string> fell_back_;
  ElasticAllocator* elastic_ = nullptr;  // set if the allocator is the elastic one
  NativeAllocator* native_ = nullptr;    // the allocator, if it follows PyTorch's rules
  WheelAllocator* wheel_ = nullptr;      // the allocator, if it is PyTorch's own
  std::optional<TierMeter> meter_;       // set on a shared simulated GPU
  std::unique_ptr<ProgramAllocator> allocator_;
  std::unique_ptr<Shadow> shadow_;

  std::atomic<bool> has_sources_{false};
  std::vector<std::shared_ptr<PoolSource>> sources_;  // changed under the allocator's lock

  SpillWatch spill_watch_;
  std::atomic<bool> took_memory_{false};
  std::atomic<Bytes> card_peak_{0};
  std::atomic<Observer*> listener_{nullptr};

  std::mutex mutex_;  // protects the members below
  // Old listeners are kept, because another thread may still be calling one.
  std::vector<std::unique_ptr<Observer>> listeners_;
  Account before_resets_;
  std::optional<Bytes> limit_of_program_;
  std::optional<Bytes> limit_of_person_;
};

}  // namespace plimsoll
