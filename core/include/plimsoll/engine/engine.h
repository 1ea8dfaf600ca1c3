// An engine: an allocator on one GPU that a program takes its memory from, over any driver, with
// what else the program, its user and its account ask about that memory.
//
// A real GPU and a simulated one differ in the driver alone. What an engine does besides comes with
// how it is made:
//   over a driver of its own, it serves threads that run at the same time, and may keep an account:
//     there PyTorch's own rules run in the background, on a simulated GPU of the same size, so that
//     it can say what the program would have needed without plimsoll;
//   on a simulated GPU that others use too, calls exclude each other, for the GPUs of a machine
//     share a clock, and the tiers are metered, for a driver that spills tells nobody.
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
#include "plimsoll/allocator/program_allocator.h"
#include "plimsoll/allocator/wheel/wheel.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/engine/spill_watch.h"
#include "plimsoll/replay/shadow.h"
#include "plimsoll/replay/tier_meter.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

// To be held around calls of any simulated GPU that an engine is on, and of its host. Never held
// while the interpreter's lock is taken.
[[nodiscard]] std::unique_lock<std::recursive_mutex> exclude_simulated_gpus();

class Engine final : private Observer {
 public:
  struct Options {
    std::string allocator;  // one of kAllocatorNames
    std::string conf;       // PYTORCH_CUDA_ALLOC_CONF
    TorchVersion version;
    int device = 0;
    bool account = false;
    const plimsoll_wheel_api* wheel = nullptr;  // with PyTorch's own allocator, for "native"
  };

  // `driver` may be called by several threads at a time.
  Engine(std::unique_ptr<Driver> driver, const Options& options);
  // `gpu` outlives the engine.
  Engine(SimulatedDriver& gpu, const Options& options);

  // To be held around calls of the driver and the elastic allocator: of no mutex where they need
  // not exclude each other.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> exclude_calls() const;
  [[nodiscard]] bool excludes_calls() const { return gpu_ != nullptr; }

  // --- memory: as ProgramAllocator's. `context` is the caller's number for the call stack, kept
  // with block and event where calls exclude each other; without it, the number that was set last.
  using Context = std::optional<std::uint32_t>;
  [[nodiscard]] Address allocate(Bytes size, StreamId stream, Context context = {});
  void allocate_at(Address address, Bytes size, StreamId stream, PoolId pool);
  bool free(Address address, Context context = {});
  bool record_stream(Address address, StreamId stream);
  [[nodiscard]] std::optional<Bytes> block_size(Address address) const;
  [[nodiscard]] std::optional<Location> locate(Address address) const;
  [[nodiscard]] ExportedMemory export_memory(Address address);
  [[nodiscard]] ImportedMemory& imported() { return imported_; }

  // What neither an address nor the account has to do with.
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
  // The allocator itself. Throws std::invalid_argument if PyTorch's rules serve.
  [[nodiscard]] ElasticAllocator& elastic() const;

  void empty_cache(PoolId pool);
  void release_pool(PoolId pool);
  void set_pool_option(PoolId pool, PoolOption option, bool on);

  // Settings that the program makes while it runs, on top of those before. PyTorch's rules serve
  // later requests by them; the other allocators only check them. Throws ConfigError.
  void configure(std::string_view settings);

  // --- limits: the program sets a fraction whenever it sees fit, and a person sets a limit beside
  // it. The lower one counts.
  [[nodiscard]] std::optional<Bytes> limit() const { return hold()->limit(); }
  void set_limit(std::optional<Bytes> limit);
  // As torch.cuda.set_per_process_memory_fraction.
  void set_fraction(double fraction);
  void set_dedicated_limit(std::optional<Bytes> limit);

  // --- two tiers
  // Whether a request may get shared memory: by the driver, or by policy.
  [[nodiscard]] bool may_spill() const;
  // Throws std::invalid_argument where neither the allocator nor the driver spills.
  [[nodiscard]] SpillWatch& spill_watch();
  // The most dedicated memory that was reserved after any request. Throws std::logic_error if the
  // tiers are not metered.
  [[nodiscard]] Bytes peak_dedicated() const;
  // Page-locked memory for copies: the process's, or, on a simulated GPU, the engine's own.
  [[nodiscard]] HostPool& host_pool();
  // How much of it is held, on a simulated GPU by the whole machine.
  [[nodiscard]] Bytes host_reserved_bytes() const;
  // The file keeps what paused memory holds, if this GPU's memory holds anything.
  [[nodiscard]] std::unique_ptr<BackupStore> store_in(int file) const;

  // --- what is told
  [[nodiscard]] Statistics statistics();
  [[nodiscard]] std::vector<SegmentInfo> segments() const;
  void reset_peak_statistics();
  void reset_accumulated_statistics();
  // Tells `listener` of all events from now on, instead of the one before; null ends it.
  void listen(std::unique_ptr<Observer> listener);

  [[nodiscard]] Driver& driver() const { return driver_; }
  [[nodiscard]] int device() const { return options_.device; }
  [[nodiscard]] TorchVersion version() const { return options_.version; }
  // Why the allocator is not the one that was asked for, in a sentence.
  [[nodiscard]] const std::optional<std::string>& fell_back() const { return fell_back_; }

  struct Account {
    Bytes peak_allocated = 0;
    Bytes peak_reserved = 0;
    Bytes peak_shared_reserved = 0;  // of that, at most so much in shared memory
    Bytes card_total = 0;
    std::int64_t num_device_alloc = 0;
    std::int64_t num_device_free = 0;
    std::int64_t num_alloc_retries = 0;
    std::int64_t num_ooms = 0;
    // Only if the account was asked for. What the whole card had in use at most is sampled whenever
    // this engine took memory.
    std::optional<Bytes> card_peak;
    std::optional<ShadowResult> torch;
  };
  // Of the engine's whole life, whatever the program has reset.
  [[nodiscard]] Account account();

 private:
  Engine(std::unique_ptr<Driver> owned, SimulatedDriver* gpu, const Options& options);

  void observe(const TraceEvent& event) override;
  [[nodiscard]] std::unique_ptr<ProgramAllocator> make_program_allocator();
  void set_lower_limit();
  void sample_card();
  void choose_observer();

  Options options_;
  SimulatedDriver* gpu_;  // null: the driver is its own
  std::unique_ptr<Driver> owned_;
  Driver& driver_;
  ImportedMemory imported_;
  std::optional<HostPool> host_pool_;  // outlives what the allocator pauses
  std::optional<std::string> fell_back_;
  ElasticAllocator* elastic_ = nullptr;  // the allocator, if it is one
  NativeAllocator* native_ = nullptr;    // the allocator, if it follows PyTorch's rules
  WheelAllocator* wheel_ = nullptr;      // the allocator, if it is PyTorch's own
  std::optional<TierMeter> meter_;       // of `gpu_`
  std::unique_ptr<ProgramAllocator> allocator_;
  std::unique_ptr<Shadow> shadow_;

  SpillWatch spill_watch_;
  std::atomic<bool> took_memory_{false};
  std::atomic<Bytes> card_peak_{0};
  std::atomic<Observer*> listener_{nullptr};

  std::mutex mutex_;                                  // of what follows
  std::vector<std::unique_ptr<Observer>> listeners_;  // another thread may be calling an old one
  Account before_resets_;
  std::optional<Bytes> limit_of_program_;
  std::optional<Bytes> limit_of_person_;
};

}  // namespace plimsoll
