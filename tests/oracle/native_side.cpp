#include <unordered_map>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/native.h"
#include "side.h"

// plimsoll's `native` as one side of the comparison.

namespace {

using namespace plimsoll;

constexpr std::size_t kMostEvents = 1'000'000;

// Runs a function and turns its errors into those of a Side.
template <typename Function>
auto guard(Function function) {
  try {
    return function();
  } catch (const OutOfMemory& error) {
    throw OutOfMemoryError(error.what());
  } catch (const DriverError& error) {
    throw OtherError(error.what());
  } catch (const ConfigError& error) {
    throw OtherError(error.what());
  }
}

class NativeSide final : public Side {
 public:
  NativeSide(Bytes memory, std::string_view settings, Observer& observer)
      : driver_(host_, memory),
        allocator_(driver_, AllocatorConfig::parse(settings, rules()), rules()) {
    allocator_.history().record_up_to(kMostEvents);
    allocator_.set_observer(&observer);
  }

  Address malloc(Bytes size, StreamId stream) override {
    return guard([&] { return remember(allocator_.malloc(size, stream)); });
  }
  Address malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) override {
    return guard([&] { return remember(allocator_.malloc_at(address, size, stream, pool)); });
  }
  void free(Address address) override {
    Block* const block = blocks_.at(address);
    blocks_.erase(address);
    guard([&] { allocator_.free(block); });
  }
  void record_stream(Address address, StreamId stream) override {
    allocator_.record_stream(blocks_.at(address), stream);
  }
  void empty_cache(PoolId pool) override {
    guard([&] { allocator_.empty_cache(pool); });
  }

  void use_pool(PoolId pool) override { allocator_.use_pool(pool); }
  void begin_allocate_to_pool(PoolId pool, Allocator::Filter filter) override {
    allocator_.begin_allocate_to_pool(pool, std::move(filter));
  }
  void end_allocate_to_pool(PoolId pool) override { allocator_.end_allocate_to_pool(pool); }
  void set_capturing(bool capturing) override {
    if (capturing) {
      allocator_.begin_graph_capture();
    } else {
      allocator_.end_graph_capture();
    }
  }
  void release_pool(PoolId pool) override { allocator_.release_pool(pool); }
  void set_pool_option(PoolId pool, PoolOption option, bool on) override {
    allocator_.set_pool_option(pool, option, on);
  }

  void set_fraction(double fraction) override {
    allocator_.set_limit(limit_of(fraction, driver_.memory_info().total, rules()));
  }
  void make_settings(const std::string& settings) override {
    guard([&] { allocator_.configure(allocator_.config().with(settings, rules())); });
  }
  void reset_peak_statistics() override { allocator_.reset_peak_statistics(); }
  void reset_accumulated_statistics() override { allocator_.reset_accumulated_statistics(); }

  const Statistics& statistics() override { return allocator_.statistics(); }
  std::vector<SegmentInfo> segments() override {
    allocator_.note_snapshot();
    allocator_.check_invariants();
    return allocator_.segments();
  }
  std::vector<TraceEvent> history() override {
    const History& history = allocator_.history();
    std::vector<TraceEvent> events;
    for (std::size_t i = 0; i < history.size(); ++i) {
      events.push_back(history[i]);
      events.back().time_us = 0;
      events.back().context = 0;
    }
    return events;
  }
  SimulatedDriver& gpu() override { return driver_; }

 private:
  Address remember(Block* block) {
    blocks_[block->address] = block;
    return block->address;
  }

  SimulatedHost host_{0};
  SimulatedDriver driver_;
  NativeAllocator allocator_;
  std::unordered_map<Address, Block*> blocks_;
};

TorchVersion rules_of(std::string_view version) {
  try {
    return TorchVersion::parse(version);
  } catch (const ConfigError&) {
    return kNewestTorch;
  }
}

}  // namespace

TorchVersion rules() {
  static const TorchVersion version = rules_of(PLIMSOLL_ORACLE_TORCH);
  return version;
}

std::unique_ptr<Side> make_native(Bytes memory, const std::string& settings, Observer& observer) {
  return guard([&] { return std::make_unique<NativeSide>(memory, settings, observer); });
}
