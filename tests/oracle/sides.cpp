#include <functional>
#include <unordered_map>
#include <utility>

#include "plimsoll/allocator/config.h"
#include "plimsoll/allocator/native/native.h"
#include "plimsoll/allocator/wheel/wheel.h"
#include "side.h"

// The two sides of the comparison: plimsoll's `native`, and PyTorch's own allocator.

namespace {

using namespace plimsoll;

constexpr std::size_t kMostEvents = 1'000'000;

// Runs a function; turns its errors into OutOfMemoryError or OtherError.
template <typename Function>
auto guard(Function function) {
  try {
    return function();
  } catch (const OutOfMemory& error) {
    throw OutOfMemoryError(error.what());
  } catch (const std::exception& error) {
    throw OtherError(error.what());
  }
}

class AllocatorSide final : public Side {
 public:
  using Configure = std::function<void(Allocator&, const std::string&)>;

  template <typename Make>
  AllocatorSide(Bytes memory, Make make, Configure configure)
      : driver_(host_, memory), allocator_(make(driver_)), configure_(std::move(configure)) {
    allocator_->history().record_up_to(kMostEvents);
  }

  Allocator& allocator() { return *allocator_; }

  Address malloc(Bytes size, StreamId stream) override {
    return guard([&] { return remember(allocator_->malloc(size, stream)); });
  }
  Address malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) override {
    return guard([&] { return remember(allocator_->malloc_at(address, size, stream, pool)); });
  }
  void free(Address address) override {
    Block* const block = blocks_.at(address);
    blocks_.erase(address);
    guard([&] { allocator_->free(block); });
  }
  void record_stream(Address address, StreamId stream) override {
    allocator_->record_stream(blocks_.at(address), stream);
  }
  void empty_cache(PoolId pool) override {
    guard([&] { allocator_->empty_cache(pool); });
  }

  void use_pool(PoolId pool) override { allocator_->use_pool(pool); }
  void begin_allocate_to_pool(PoolId pool, Allocator::Filter filter) override {
    allocator_->begin_allocate_to_pool(pool, std::move(filter));
  }
  void end_allocate_to_pool(PoolId pool) override { allocator_->end_allocate_to_pool(pool); }
  void set_capturing(bool capturing) override {
    if (capturing) {
      allocator_->begin_graph_capture();
    } else {
      allocator_->end_graph_capture();
    }
  }
  void release_pool(PoolId pool) override { allocator_->release_pool(pool); }
  void set_pool_option(PoolId pool, PoolOption option, bool on) override {
    allocator_->set_pool_option(pool, option, on);
  }

  void set_fraction(double fraction) override {
    allocator_->set_limit(limit_of(fraction, driver_.memory_info().total, rules()));
  }
  void make_settings(const std::string& settings) override {
    guard([&] { configure_(*allocator_, settings); });
  }
  void reset_peak_statistics() override { allocator_->reset_peak_statistics(); }
  void reset_accumulated_statistics() override { allocator_->reset_accumulated_statistics(); }

  const Statistics& statistics() override { return allocator_->statistics(); }
  std::vector<SegmentInfo> segments() override {
    allocator_->note_snapshot();
    allocator_->check_invariants();
    return allocator_->segments();
  }
  std::vector<TraceEvent> history() override {
    const History& history = allocator_->history();
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
  std::unique_ptr<Allocator> allocator_;
  Configure configure_;
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

bool pytorch_has_no_split() { return plimsoll_wheel()->has_no_split != 0; }
bool pytorch_can_unset_use_on_oom() { return plimsoll_wheel()->can_unset_use_on_oom != 0; }
bool pytorch_has_malloc_at() { return plimsoll_wheel()->has_malloc_at != 0; }

std::unique_ptr<Side> make_native(Bytes memory, const std::string& settings, Observer& observer) {
  const auto make = [&](Driver& driver) {
    return std::make_unique<NativeAllocator>(driver, AllocatorConfig::parse(settings, rules()),
                                             rules());
  };
  const auto configure = [](Allocator& allocator, const std::string& later) {
    auto& native = static_cast<NativeAllocator&>(allocator);
    native.configure(native.config().with(later, rules()));
  };
  return guard([&] {
    auto side = std::make_unique<AllocatorSide>(memory, make, configure);
    side->allocator().set_observer(&observer);
    return side;
  });
}

std::unique_ptr<Side> make_pytorch(Bytes memory, const std::string& settings) {
  const auto make = [&](Driver& driver) {
    return std::make_unique<WheelAllocator>(*plimsoll_wheel(), driver, settings, rules(), 0);
  };
  const auto configure = [](Allocator& allocator, const std::string& later) {
    static_cast<WheelAllocator&>(allocator).configure(later);
  };
  return guard([&] {
    auto side = std::make_unique<AllocatorSide>(memory, make, configure);
    (void)side->allocator().segments();  // initializes PyTorch's allocator and its counters
    return side;
  });
}
