#include "plimsoll/engine/live_engine.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace plimsoll {
namespace {

// By device; an engine that was put here stays for good.
std::array<std::atomic<LiveEngine*>, 64> engines{};

// Like the engines, it is never destroyed.
std::atomic<HostPool*> host_pool_of_process{nullptr};

AllocatorConfig config_of(const LiveEngine::Options& options) {
  return AllocatorConfig::parse(options.conf, options.version);
}

bool takes_memory(Action action) {
  return action == Action::segment_alloc || action == Action::segment_map;
}

void add_peaks(LiveEngine::Account& account, const Statistics& statistics) {
  const auto raise = [](Bytes& peak, const PoolStat& stat) {
    peak = std::max(peak, static_cast<Bytes>(stat.all.peak));
  };
  raise(account.peak_allocated, statistics.allocated_bytes);
  raise(account.peak_reserved, statistics.reserved_bytes);
  account.peak_shared_reserved = std::max(
      account.peak_shared_reserved, static_cast<Bytes>(statistics.shared_reserved_bytes.peak));
}

void add_counts(LiveEngine::Account& account, const Statistics& statistics) {
  account.num_device_alloc += statistics.num_device_alloc;
  account.num_device_free += statistics.num_device_free;
  account.num_alloc_retries += statistics.num_alloc_retries;
  account.num_ooms += statistics.num_ooms;
}

}  // namespace

LiveEngine::LiveEngine(std::unique_ptr<Driver> driver, std::string driver_name,
                       EnablePeer enable_peer, const Options& options)
    : options_(options),
      driver_name_(std::move(driver_name)),
      enable_peer_(std::move(enable_peer)),
      driver_(std::move(driver)),
      imported_(*driver_),
      allocator_(make_live_allocator()) {
  const auto device = static_cast<std::size_t>(options.device);
  if (device >= engines.size()) throw std::invalid_argument("there is no such GPU");
  if (options.account) {
    shadow_ = std::make_unique<Shadow>(driver_->memory_info().total, config_of(options),
                                       options.version, options.device);
  }
  limits_.of_program = allocator_->limit();
  sample_card();
  choose_observer();
  engines[device] = this;
}

std::unique_ptr<LiveAllocator> LiveEngine::make_live_allocator() {
  std::string_view name = options_.allocator;
  if (name == "elastic" && !driver_->has_virtual_memory()) {
    name = "native";
    fell_back_ =
        "PyTorch's rules serve instead of the elastic allocator: this GPU's driver has no virtual "
        "memory management";
  }
  NamedAllocator made =
      make_allocator(name, *driver_, options_.conf, options_.version, options_.device);
  elastic_ = made.elastic;
  if (elastic_ == nullptr) return std::make_unique<LockedAllocator>(std::move(made.allocator));
  static_cast<void>(made.allocator.release());  // the same object, which needs no lock
  return std::unique_ptr<LiveAllocator>(elastic_);
}

LiveEngine* LiveEngine::on(int device) {
  const auto index = static_cast<std::size_t>(device);
  return index < engines.size() ? engines[index].load() : nullptr;
}

void LiveEngine::for_each(const std::function<void(LiveEngine&)>& function) {
  for (const auto& engine : engines) {
    if (LiveEngine* const found = engine.load()) function(*found);
  }
}

LiveEngine* LiveEngine::owner_of(Address address) {
  LiveEngine* owner = nullptr;
  for_each([&](LiveEngine& engine) {
    if (owner == nullptr && engine.allocator().locate(address)) owner = &engine;
  });
  return owner;
}

// --- what the program asks for -----------------------------------------------------------------

Address LiveEngine::allocate(Bytes size, StreamId stream) {
  const Address address = allocator_->allocate(size, stream);
  if (took_memory_.load(std::memory_order_relaxed)) sample_card();
  if (elastic_ != nullptr) spill_watch_.look(*elastic_, size);
  return address;
}

void LiveEngine::set_dedicated_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limits_.of_person = limit;
  allocator_->set_limit(limits_.lower());
}

void LiveEngine::empty_cache(PoolId pool) {
  allocator_->empty_cache(pool);
  if (shadow_) shadow_->apply([pool](NativeAllocator& shadow) { shadow.empty_cache(pool); });
}

// The shadow's uses of a pool are other ones, so it is told of the last only.
void LiveEngine::release_pool(PoolId pool) {
  allocator_->release_pool(pool);
  if (!shadow_ || allocator_->pool_uses(pool) > 0) return;
  shadow_->apply([pool](NativeAllocator& shadow) {
    while (shadow.pool_uses(pool) > 0) shadow.release_pool(pool);
  });
}

void LiveEngine::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limits_.of_program = limit;
  allocator_->set_limit(limits_.lower());
  if (shadow_) shadow_->apply([limit](NativeAllocator& shadow) { shadow.set_limit(limit); });
}

void LiveEngine::set_pool_option(PoolId pool, PoolOption option, bool on) {
  allocator_->set_pool_option(pool, option, on);
  if (!shadow_) return;
  shadow_->apply([pool, option, on](NativeAllocator& shadow) {
    if (shadow.pool_uses(pool) == 0) shadow.use_pool(pool);
    shadow.set_pool_option(pool, option, on);
  });
}

void LiveEngine::reset_peak_statistics() {
  const std::lock_guard lock(mutex_);
  add_peaks(before_resets_, allocator_->statistics());
  allocator_->reset_peak_statistics();
}

void LiveEngine::reset_accumulated_statistics() {
  const std::lock_guard lock(mutex_);
  add_counts(before_resets_, allocator_->statistics());
  allocator_->reset_accumulated_statistics();
}

// --- host memory -------------------------------------------------------------------------------

HostPool& LiveEngine::host_pool() {
  static HostPool& pool = [this]() -> HostPool& {
    auto* const made = new HostPool(*driver_);
    host_pool_of_process = made;
    return *made;
  }();
  return pool;
}

HostPool* LiveEngine::host_pool_if_open() { return host_pool_of_process; }

Bytes LiveEngine::host_reserved_bytes() const {
  const HostPool* const pool = host_pool_if_open();
  return pool == nullptr ? 0 : static_cast<Bytes>(pool->statistics().reserved_bytes.current);
}

std::unique_ptr<BackupStore> LiveEngine::store_in(int file) const {
  if (driver_name_ == "simulated") return std::make_unique<EmptyFile>(file);
  return std::make_unique<BackupFile>(file);
}

// --- events ------------------------------------------------------------------------------------

void LiveEngine::listen(std::unique_ptr<Observer> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = listener.get();
  if (listener != nullptr) listeners_.push_back(std::move(listener));
  choose_observer();
}

void LiveEngine::choose_observer() {
  allocator_->set_observer(shadow_ != nullptr || listener_ != nullptr ? this : nullptr);
}

void LiveEngine::observe(const TraceEvent& event) {
  if (shadow_) {
    if (takes_memory(event.action)) took_memory_.store(true, std::memory_order_relaxed);
    shadow_->add(event);
  }
  if (Observer* const listener = listener_) listener->observe(event);
}

// Asks the driver, which may take its time: never under an allocator's lock.
void LiveEngine::sample_card() {
  took_memory_.store(false, std::memory_order_relaxed);
  const MemoryInfo memory = driver_->memory_info();
  const Bytes in_use = memory.total - memory.free;
  Bytes peak = card_peak_;
  while (peak < in_use && !card_peak_.compare_exchange_weak(peak, in_use)) {
  }
}

// --- the account -------------------------------------------------------------------------------

LiveEngine::Account LiveEngine::account() {
  Account account;
  {
    const std::lock_guard lock(mutex_);
    account = before_resets_;
    const Statistics statistics = allocator_->statistics();
    add_peaks(account, statistics);
    add_counts(account, statistics);
  }
  account.card_total = driver_->memory_info().total;
  if (shadow_) {
    account.card_peak = card_peak_;
    account.torch = shadow_->result();
  }
  return account;
}

}  // namespace plimsoll
