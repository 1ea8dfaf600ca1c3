#include "plimsoll/engine/engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "plimsoll/engine/allocators.h"

namespace plimsoll {
namespace {

AllocatorConfig config_of(const Engine::Options& options) {
  return AllocatorConfig::parse(options.conf, options.version);
}

bool takes_memory(Action action) {
  return action == Action::segment_alloc || action == Action::segment_map;
}

void add_peaks(Engine::Account& account, const Statistics& statistics) {
  const auto raise = [](Bytes& peak, const PoolStat& stat) {
    peak = std::max(peak, static_cast<Bytes>(stat.all.peak));
  };
  raise(account.peak_allocated, statistics.allocated_bytes);
  raise(account.peak_reserved, statistics.reserved_bytes);
  account.peak_shared_reserved = std::max(
      account.peak_shared_reserved, static_cast<Bytes>(statistics.shared_reserved_bytes.peak));
}

void add_counts(Engine::Account& account, const Statistics& statistics) {
  account.num_device_alloc += statistics.num_device_alloc;
  account.num_device_free += statistics.num_device_free;
  account.num_alloc_retries += statistics.num_alloc_retries;
  account.num_ooms += statistics.num_ooms;
}

}  // namespace

// Locks the mutex that all simulated GPUs share, because the GPUs of one machine share a host.
std::unique_lock<std::recursive_mutex> exclude_simulated_gpus() {
  static std::recursive_mutex mutex;
  return std::unique_lock(mutex);
}

Engine::Engine(std::unique_ptr<Driver> driver, const Options& options)
    : Engine(std::move(driver), nullptr, options) {}

Engine::Engine(SimulatedDriver& gpu, const Options& options) : Engine(nullptr, &gpu, options) {}

Engine::Engine(std::unique_ptr<Driver> owned, SimulatedDriver* gpu, const Options& options)
    : options_(options),
      gpu_(gpu),
      owned_(std::move(owned)),
      driver_(gpu != nullptr ? *gpu : *owned_),
      imported_(driver_),
      allocator_(make_program_allocator()) {
  limit_of_program_ = limit();
  if (options.account) {
    shadow_ = std::make_unique<Shadow>(driver_.memory_info().total, config_of(options),
                                       options.version, options.device);
    sample_card();
  }
  choose_observer();
}

std::unique_ptr<ProgramAllocator> Engine::make_program_allocator() {
  std::string_view name = options_.allocator;
  if (name == "elastic" && !driver_.has_virtual_memory()) {
    name = "native";
    fell_back_ =
        "PyTorch's rules serve instead of the elastic allocator: this GPU's driver has no virtual "
        "memory management";
  }
  NamedAllocator made = make_allocator(name, driver_, options_.conf, options_.version,
                                       options_.device, options_.wheel);
  elastic_ = made.elastic;
  native_ = made.native;
  wheel_ = made.wheel;
  if (gpu_ != nullptr) {
    host_pool_.emplace(*gpu_);
    meter_.emplace(*made.allocator, *gpu_, elastic_ != nullptr);
  }
  if (elastic_ == nullptr) return std::make_unique<LockedAllocator>(std::move(made.allocator));
  // `elastic_` points to the same object as `made.allocator`. The elastic allocator has locks of
  // its own, so it needs no LockedAllocator around it.
  static_cast<void>(made.allocator.release());
  return std::unique_ptr<ProgramAllocator>(elastic_);
}

std::unique_lock<std::recursive_mutex> Engine::exclude_calls() const {
  if (gpu_ == nullptr) return {};
  return exclude_simulated_gpus();
}

// --- memory ------------------------------------------------------------------------------------

Address Engine::allocate(Bytes size, StreamId stream, Context context) {
  Address address = 0;
  if (!has_sources_.load(std::memory_order_relaxed)) {
    address = lend(size, stream, context);
  } else {
    const std::optional<Offer> offer = offer_segment(size, stream);
    try {
      address = lend(size, stream, context);
    } catch (...) {
      return_segments(offer);
      throw;
    }
    return_segments(offer);
  }
  if (took_memory_.load(std::memory_order_relaxed)) sample_card();
  if (elastic_ != nullptr) {
    spill_watch_.look(*elastic_, size);
  } else if (meter_) {
    spill_watch_.look(*meter_, size);
  }
  return address;
}

Address Engine::lend(Bytes size, StreamId stream, Context context) {
  const auto exclusive = exclude_calls();
  if (gpu_ != nullptr && context) hold()->set_context(*context);
  const Address address = allocator_->allocate(size, stream);
  if (meter_) meter_->lent(address, *allocator_->block_size(address));
  return address;
}

// Asks the pool's source, a custom allocator of the program, for a segment. If the source has no
// memory, or if the segment would exceed the limit, empties the cache and tries once more, as
// PyTorch does.
std::optional<Engine::Offer> Engine::offer_segment(Bytes size, StreamId stream) {
  for (const bool is_retry : {false, true}) {
    if (is_retry) empty_cache({});
    const std::optional<NativeAllocator::Lack> lacking = lack(size, stream);
    if (!lacking) return {};
    if (lacking->exceeds_limit) continue;
    const Address address = lacking->source->give(lacking->size, stream);
    if (address == 0) continue;
    const Held held = hold();
    lacking->source->offer({address, lacking->size, stream});
    return Offer{lacking->source, address};
  }
  return {};
}

std::optional<NativeAllocator::Lack> Engine::lack(Bytes size, StreamId stream) {
  const Held held = hold();
  return native_->lack(size, stream);
}

void Engine::return_segments(const std::optional<Offer>& unused) {
  if (!has_sources_.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<std::shared_ptr<PoolSource>, PoolSource::Segment>> released;
  {
    const Held held = hold();
    if (unused) unused->source->withdraw(unused->address);
    for (const auto& source : sources_) {
      for (const PoolSource::Segment& segment : source->released()) {
        released.emplace_back(source, segment);
      }
    }
    std::erase_if(sources_, [](const auto& source) { return source.use_count() == 1; });
  }
  for (const auto& [source, segment] : released) source->take_back(segment);
}

void Engine::allocate_at(Address address, Bytes size, StreamId stream, PoolId pool) {
  const auto exclusive = exclude_calls();
  allocator_->allocate_at(address, size, stream, pool);
}

bool Engine::free(Address address, Context context) {
  const auto exclusive = exclude_calls();
  if (gpu_ != nullptr && context) hold()->set_context(*context);
  if (meter_) {
    const std::optional<Bytes> size = allocator_->block_size(address);
    if (!size) return false;
    meter_->returning(address, *size);
  }
  return allocator_->free(address);
}

bool Engine::record_stream(Address address, StreamId stream) {
  const auto exclusive = exclude_calls();
  return allocator_->record_stream(address, stream);
}

std::optional<Bytes> Engine::block_size(Address address) const {
  const auto exclusive = exclude_calls();
  return allocator_->block_size(address);
}

std::optional<Location> Engine::locate(Address address) const {
  const auto exclusive = exclude_calls();
  return allocator_->locate(address);
}

ExportedMemory Engine::export_memory(Address address) {
  const auto exclusive = exclude_calls();
  return allocator_->export_memory(address);
}

ElasticAllocator& Engine::elastic() const {
  if (elastic_ == nullptr) {
    throw std::invalid_argument("this needs the elastic allocator, and PyTorch's rules serve here");
  }
  return *elastic_;
}

void Engine::empty_cache(PoolId pool) {
  hold()->empty_cache(pool);
  return_segments();
  if (shadow_) shadow_->apply([pool](NativeAllocator& shadow) { shadow.empty_cache(pool); });
}

// Ends one use of the pool. The shadow (replay/shadow.h) has its own count of uses, which may
// differ from the allocator's. So the shadow ends all its uses when the allocator has none left.
void Engine::release_pool(PoolId pool) {
  int uses = 0;
  {
    const Held held = hold();
    held->release_pool(pool);
    uses = held->pool_uses(pool);
  }
  if (!shadow_ || uses > 0) return;
  shadow_->apply([pool](NativeAllocator& shadow) {
    while (shadow.pool_uses(pool) > 0) shadow.release_pool(pool);
  });
}

void Engine::set_pool_option(PoolId pool, PoolOption option, bool on) {
  hold()->set_pool_option(pool, option, on);
  if (!shadow_) return;
  shadow_->apply([pool, option, on](NativeAllocator& shadow) {
    if (shadow.pool_uses(pool) == 0) shadow.use_pool(pool);
    shadow.set_pool_option(pool, option, on);
  });
}

void Engine::set_pool_source(PoolId pool, PoolSource::Give give, PoolSource::TakeBack take_back) {
  if (native_ == nullptr) {
    throw std::invalid_argument(
        "only PyTorch's rules (the allocator native) serve a pool that has an allocator of its "
        "own");
  }
  auto source = std::make_shared<PoolSource>(give, take_back, options_.device);
  const Held held = hold();
  native_->set_pool_source(pool, source);
  sources_.push_back(std::move(source));
  has_sources_ = true;
}

// --- limits ------------------------------------------------------------------------------------

void Engine::set_lower_limit() {
  std::optional<Bytes> lower = limit_of_program_;
  if (!lower || (limit_of_person_ && *limit_of_person_ < *lower)) lower = limit_of_person_;
  hold()->set_limit(lower);
}

void Engine::configure(std::string_view settings) {
  const Held held = hold();
  if (wheel_ != nullptr) {
    wheel_->configure(settings);
    return;
  }
  const AllocatorConfig before = native_ == nullptr ? AllocatorConfig() : native_->config();
  const AllocatorConfig config = before.with(settings, options_.version);
  if (native_ != nullptr) native_->configure(config);
}

void Engine::set_limit(std::optional<Bytes> limit) {
  const auto exclusive = exclude_calls();
  const std::lock_guard lock(mutex_);
  limit_of_program_ = limit;
  set_lower_limit();
  if (shadow_) shadow_->apply([limit](NativeAllocator& shadow) { shadow.set_limit(limit); });
}

void Engine::set_fraction(double fraction) {
  set_limit(limit_of(fraction, driver_.memory_info().total, options_.version));
}

void Engine::set_dedicated_limit(std::optional<Bytes> limit) {
  const auto exclusive = exclude_calls();
  const std::lock_guard lock(mutex_);
  limit_of_person_ = limit;
  set_lower_limit();
}

// --- two tiers ---------------------------------------------------------------------------------

bool Engine::may_spill() const {
  return driver_.spills() ||
         (elastic_ != nullptr && elastic_->spill_policy() == SpillPolicy::spill);
}

SpillWatch& Engine::spill_watch() {
  if (!driver_.spills()) static_cast<void>(elastic());
  return spill_watch_;
}

Bytes Engine::peak_dedicated() const {
  if (!meter_) throw std::logic_error("the tiers of this GPU are not metered");
  return meter_->peak_dedicated();
}

HostPool& Engine::host_pool() { return host_pool_ ? *host_pool_ : HostPool::of_process(driver_); }

Bytes Engine::host_reserved_bytes() const {
  if (gpu_ != nullptr) return gpu_->shared_used() - gpu_->spilled();
  const HostPool* const pool = HostPool::of_process_if_open();
  return pool == nullptr ? 0 : static_cast<Bytes>(pool->statistics().reserved_bytes.current);
}

std::unique_ptr<BackupStore> Engine::store_in(int file) const {
  if (driver_.name() == "simulated") return std::make_unique<EmptyFile>(file);
  return std::make_unique<BackupFile>(file);
}

// --- reports -----------------------------------------------------------------------------------

Statistics Engine::statistics() {
  const auto exclusive = exclude_calls();
  return meter_ ? meter_->statistics() : allocator_->statistics();
}

std::vector<SegmentInfo> Engine::segments() const {
  const Held held = hold();
  return meter_ ? meter_->segments() : held->segments();
}

void Engine::reset_peak_statistics() {
  const auto exclusive = exclude_calls();
  const std::lock_guard lock(mutex_);
  add_peaks(before_resets_, allocator_->statistics());
  hold()->reset_peak_statistics();
  if (meter_) meter_->reset_peak();
}

void Engine::reset_accumulated_statistics() {
  const auto exclusive = exclude_calls();
  const std::lock_guard lock(mutex_);
  add_counts(before_resets_, allocator_->statistics());
  hold()->reset_accumulated_statistics();
  if (meter_) meter_->reset_accumulated();
}

void Engine::listen(std::unique_ptr<Observer> listener) {
  const auto exclusive = exclude_calls();
  const std::lock_guard lock(mutex_);
  listener_ = listener.get();
  if (listener != nullptr) listeners_.push_back(std::move(listener));
  choose_observer();
}

void Engine::choose_observer() {
  hold()->set_observer(shadow_ != nullptr || listener_ != nullptr ? this : nullptr);
}

void Engine::observe(const TraceEvent& event) {
  if (shadow_) {
    if (takes_memory(event.action)) took_memory_.store(true, std::memory_order_relaxed);
    shadow_->add(event);
  }
  if (Observer* const listener = listener_) listener->observe(event);
}

// Asks the driver how much of the card is in use. The call may take long, so never make it under an
// allocator's lock.
void Engine::sample_card() {
  took_memory_.store(false, std::memory_order_relaxed);
  const MemoryInfo memory = driver_.memory_info();
  const Bytes in_use = memory.total - memory.free;
  Bytes peak = card_peak_;
  while (peak < in_use && !card_peak_.compare_exchange_weak(peak, in_use)) {
  }
}

// --- the account -------------------------------------------------------------------------------

Engine::Account Engine::account() {
  Account account;
  {
    const auto exclusive = exclude_calls();
    const std::lock_guard lock(mutex_);
    account = before_resets_;
    const Statistics statistics = allocator_->statistics();
    add_peaks(account, statistics);
    add_counts(account, statistics);
  }
  account.card_total = driver_.memory_info().total;
  if (shadow_) {
    account.card_peak = card_peak_;
    account.torch = shadow_->result();
  }
  return account;
}

}  // namespace plimsoll
