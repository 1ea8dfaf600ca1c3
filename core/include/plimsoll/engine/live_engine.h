// A live engine: an allocator on one GPU that a running program takes its memory from, and the
// account of what that came to.
//
// The account also runs PyTorch's own rules in the background, on a simulated GPU of the same size,
// so that it can say what the program would have needed without plimsoll.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/host/backup_store.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/allocator/imported_memory.h"
#include "plimsoll/allocator/live_allocator.h"
#include "plimsoll/driver/driver.h"
#include "plimsoll/engine/allocators.h"
#include "plimsoll/engine/tiers.h"
#include "plimsoll/replay/shadow.h"

namespace plimsoll {

class LiveEngine final : public TieredEngine, private Observer {
 public:
  struct Options {
    std::string allocator;  // one of kAllocatorNames
    std::string conf;       // PYTORCH_CUDA_ALLOC_CONF
    TorchVersion version;
    int device = 0;
    bool account = true;
  };
  // Lets another GPU of this process use this one's memory.
  using EnablePeer = std::function<Status(int device)>;

  // `driver` may be called by several threads at a time.
  LiveEngine(std::unique_ptr<Driver> driver, std::string driver_name, EnablePeer enable_peer,
             const Options& options);

  // The engine of a device, the newest one if there are several; null if there is none.
  [[nodiscard]] static LiveEngine* on(int device);
  [[nodiscard]] static LiveEngine* owner_of(Address address);
  static void for_each(const std::function<void(LiveEngine&)>& function);

  // What the program asks for, with the account kept; the rest is the allocator's.
  [[nodiscard]] Address allocate(Bytes size, StreamId stream);
  void empty_cache(PoolId pool);
  void release_pool(PoolId pool);
  [[nodiscard]] std::optional<Bytes> limit() const override { return allocator_->limit(); }
  void set_limit(std::optional<Bytes> limit) override;
  void set_dedicated_limit(std::optional<Bytes> limit) override;
  void set_pool_option(PoolId pool, PoolOption option, bool on);
  void reset_peak_statistics();
  void reset_accumulated_statistics();
  // Tells `listener` of all events from now on, instead of the one before; null ends it.
  void listen(std::unique_ptr<Observer> listener);

  [[nodiscard]] LiveAllocator& allocator() { return *allocator_; }
  [[nodiscard]] bool waits() const override { return true; }
  [[nodiscard]] std::unique_lock<std::recursive_mutex> exclude_calls() override { return {}; }
  [[nodiscard]] ElasticAllocator& elastic() const override { return require_elastic(elastic_); }
  // Only the elastic allocator spills here.
  [[nodiscard]] SpillWatch& spill_watch() override {
    static_cast<void>(elastic());
    return spill_watch_;
  }
  [[nodiscard]] Statistics statistics() override { return allocator_->statistics(); }
  [[nodiscard]] std::vector<SegmentInfo> segments() const override {
    return allocator_->segments();
  }
  [[nodiscard]] Driver& driver() const override { return *driver_; }
  [[nodiscard]] ImportedMemory& imported() { return imported_; }
  // The process's page-locked memory, over the driver of the engine that is first asked.
  [[nodiscard]] HostPool& host_pool() override;
  // Null if no engine has been asked.
  [[nodiscard]] static HostPool* host_pool_if_open();
  // Of all engines.
  [[nodiscard]] Bytes host_reserved_bytes() const override;
  [[nodiscard]] std::unique_ptr<BackupStore> store_in(int file) const override;
  [[nodiscard]] const EnablePeer& enable_peer() const { return enable_peer_; }
  [[nodiscard]] const std::string& driver_name() const { return driver_name_; }
  [[nodiscard]] TorchVersion version() const override { return options_.version; }
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
  void observe(const TraceEvent& event) override;
  [[nodiscard]] std::unique_ptr<LiveAllocator> make_live_allocator();
  void sample_card();
  void choose_observer();

  Options options_;
  std::string driver_name_;
  EnablePeer enable_peer_;
  std::unique_ptr<Driver> driver_;
  ImportedMemory imported_;
  std::optional<std::string> fell_back_;
  ElasticAllocator* elastic_ = nullptr;  // the next, if it is one
  std::unique_ptr<LiveAllocator> allocator_;
  std::unique_ptr<Shadow> shadow_;

  SpillWatch spill_watch_;
  std::atomic<bool> took_memory_{false};
  std::atomic<Bytes> card_peak_{0};
  std::atomic<Observer*> listener_{nullptr};

  std::mutex mutex_;                                  // of what follows
  std::vector<std::unique_ptr<Observer>> listeners_;  // another thread may be calling an old one
  Account before_resets_;
  DedicatedLimits limits_;
};

}  // namespace plimsoll
