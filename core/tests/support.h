// Helpers for several tests: sizes as literals, seeded random numbers, a GPU to allocate on, and
// events and segments as short texts that are easy to compare and to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/allocator/native/native.h"
#include "plimsoll/base/units.h"
#include "plimsoll/replay/events.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {

constexpr Bytes operator""_KiB(unsigned long long count) { return count * kKiB; }
constexpr Bytes operator""_MiB(unsigned long long count) { return count * kMiB; }
constexpr Bytes operator""_GiB(unsigned long long count) { return count * kGiB; }

inline std::ostream& operator<<(std::ostream& out, Status status) {
  return out << to_string(status);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }
  // Returns a number from `low` to `high`, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  template <typename Container>
  auto& pick(Container& from) {
    return from[static_cast<std::size_t>(below(std::size(from)))];
  }

 private:
  std::mt19937_64 engine_;
};

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns the message of the exception of this type that `body` throws; empty if it throws none.
template <typename Exception, typename Body>
std::string message_of(Body body) {
  try {
    static_cast<void>(body());
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

// Writes a size as "20M", "4K" or "1536": in the largest unit that divides it.
inline std::string short_size(Bytes size) {
  if (size > 0 && size % kMiB == 0) return std::to_string(size / kMiB) + "M";
  if (size > 0 && size % kKiB == 0) return std::to_string(size / kKiB) + "K";
  return std::to_string(size);
}

// A simulated GPU with PyTorch's allocator, on a host of its own. The allocator records its whole
// history of events.
struct Gpu {
  explicit Gpu(Bytes dedicated, std::string_view config = "", TorchVersion version = {})
      : driver(host, dedicated),
        allocator(driver, AllocatorConfig::parse(config, version), version) {
    allocator.history().record_up_to(std::numeric_limits<std::size_t>::max());
  }

  Block* malloc(Bytes size, StreamId stream = 0) { return allocator.malloc(size, stream); }
  void free(std::initializer_list<Block*> blocks) {
    for (Block* const block : blocks) allocator.free(block);
  }

  // Returns the events since the last call of this function, as "segment_alloc 20M, alloc 5M".
  std::string events() {
    std::string text;
    History& history = allocator.history();
    for (std::size_t i = 0; i < history.size(); ++i) {
      if (i > 0) text += ", ";
      text += std::string(to_string(history[i].action)) + ' ' + short_size(history[i].size);
    }
    history.clear();
    return text;
  }

  // Returns each segment's blocks in brackets, sorted by address: "[5M used, 15M free] [2M free]".
  [[nodiscard]] std::string layout() const {
    std::string text;
    for (const SegmentInfo& segment : allocator.segments()) {
      std::string blocks;
      for (const BlockInfo& block : segment.blocks) {
        const std::string_view state = block.state == BlockState::inactive           ? " free"
                                       : block.state == BlockState::active_allocated ? " used"
                                                                                     : " pending";
        blocks += (blocks.empty() ? "" : ", ") + short_size(block.size).append(state);
      }
      text += (text.empty() ? "[" : " [") + blocks + ']';
    }
    return text;
  }

  [[nodiscard]] Bytes reserved() const {
    return static_cast<Bytes>(allocator.statistics().reserved_bytes.all.current);
  }

  SimulatedHost host{0};
  SimulatedDriver driver;
  NativeAllocator allocator;
};

// Returns the segments and their blocks as text, so that tests can compare two states.
inline std::string describe(const std::vector<SegmentInfo>& segments) {
  std::string text;
  for (const SegmentInfo& segment : segments) {
    text += format_address(segment.address) + (segment.small ? " small" : " large") +
            (segment.expandable ? " expandable" : "") + " stream " +
            std::to_string(segment.stream) + " pool " + std::to_string(segment.pool.second) + ':';
    for (const BlockInfo& block : segment.blocks) {
      text += ' ' + short_size(block.size) + ' ' + std::string(to_string(block.state));
      if (block.state != BlockState::inactive) text += " for " + std::to_string(block.requested);
    }
    text += '\n';
  }
  return text;
}

// A random program. It requests blocks of random sizes, frees them, uses them on other streams and
// queues work. At times it empties the cache or uses a private pool.
class RandomProgram {
 public:
  struct Options {
    bool uses_streams = true;
    bool uses_pools = true;
    bool empties_cache = true;
    bool beyond_history = false;  // also makes calls that a history does not record
    Bytes size_step = 1;          // request sizes are multiples of this
  };
  struct Live {
    Block* block;
    Bytes size;
    Bytes requested;
  };

  RandomProgram(Gpu& gpu, std::uint64_t seed, const Options& options)
      : gpu_(gpu), random_(seed), options_(options) {}

  // Makes one random step. An exception of the allocator reaches the caller, who may go on with the
  // next step.
  void step() {
    const std::uint64_t choice = random_.below(100);
    if (choice < 50) {
      malloc();
    } else if (choice < 80) {
      live_.empty() ? malloc() : free(random_live());
    } else if (choice < 88) {
      if (options_.uses_streams && !live_.empty()) {
        gpu_.allocator.record_stream(random_live()->second.block, random_.below(4));
      }
    } else if (choice < 92) {
      gpu_.driver.launch(random_.below(4), 1e5);
    } else if (choice < 95) {
      gpu_.host.advance(1e5);
    } else if (choice < 97) {
      const bool may_empty = !inside_ || options_.beyond_history;
      if (options_.empties_cache && may_empty) gpu_.allocator.empty_cache();
    } else if (choice < 98) {
      if (options_.beyond_history) gpu_.allocator.poll();
    } else if (choice < 99) {
      if (options_.uses_pools) change_pool();
    } else if (random_.one_in(4)) {
      while (!live_.empty()) free(live_.begin());
    }
  }

  // Returns the program's live blocks, by address.
  [[nodiscard]] const std::map<Address, Live>& live() const { return live_; }
  // Returns the size of the last request, even if it failed.
  [[nodiscard]] Bytes last_request() const { return last_request_; }

  // Frees all blocks, releases all private pools and empties the cache.
  void end() {
    if (inside_) gpu_.allocator.end_allocate_to_pool(*inside_);
    while (!live_.empty()) free(live_.begin());
    for (const auto& [pool, uses] : uses_) {
      for (int i = 0; i < uses; ++i) gpu_.allocator.release_pool(pool);
    }
    gpu_.allocator.empty_cache();
  }

 private:
  void malloc() {
    last_request_ = random_size();
    Block* const block = gpu_.malloc(last_request_, options_.uses_streams ? random_.below(3) : 0);
    live_.emplace(block->address, Live{block, block->size, last_request_});
  }

  Bytes random_size() {
    const auto size = [&]() -> Bytes {
      switch (random_.below(4)) {
        case 0: return random_.between(1, 4_KiB);
        case 1: return random_.between(1, 1_MiB);
        case 2: return random_.between(1, 8) * 3_MiB;
        default: return random_.between(1_MiB, 40_MiB);
      }
    };
    return round_up(size(), options_.size_step);
  }

  void free(std::map<Address, Live>::iterator chosen) {
    Block* const block = chosen->second.block;
    gpu_.allocator.free(block);
    live_.erase(chosen);
    // The block is still active if its free waits for another stream. The next request may complete
    // the free. Then free_requested and free_completed would be adjacent in the history, as if the
    // free had not waited. A snapshot event keeps them apart.
    if (block->is_active() && !options_.beyond_history) gpu_.allocator.note_snapshot();
  }

  void change_pool() {
    if (inside_) {
      gpu_.allocator.end_allocate_to_pool(*inside_);
      if (random_.one_in(2)) {
        gpu_.allocator.release_pool(*inside_);
        --uses_[*inside_];
      }
      inside_.reset();
      return;
    }
    inside_ = PoolId{0, random_.between(1, 2)};
    const bool for_one_stream = options_.beyond_history && random_.one_in(2);
    gpu_.allocator.begin_allocate_to_pool(
        *inside_, for_one_stream ? Allocator::only_on(1) : Allocator::Filter{});
    ++uses_[*inside_];
    if (options_.beyond_history)
      gpu_.allocator.set_pool_option(*inside_, PoolOption::use_on_oom, random_.one_in(2));
  }

  std::map<Address, Live>::iterator random_live() {
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(random_.below(live_.size())));
  }

  Gpu& gpu_;
  Random random_;
  Options options_;
  std::map<Address, Live> live_;
  std::optional<PoolId> inside_;
  std::map<PoolId, int> uses_;
  Bytes last_request_ = 0;
};

// Stores events in columns, one for each of their fields, because a replay reads columns.
class EventList {
 public:
  EventList() = default;
  explicit EventList(const std::vector<TraceEvent>& events) {
    for (const TraceEvent& event : events) add(event);
  }
  explicit EventList(const History& history) {
    for (std::size_t i = 0; i < history.size(); ++i) add(history[i]);
  }

  void add(const TraceEvent& event) {
    action_.push_back(static_cast<std::uint8_t>(event.action));
    address_.push_back(event.address);
    size_.push_back(event.size);
    stream_.push_back(event.stream);
    pool_first_.push_back(event.pool.first);
    pool_second_.push_back(event.pool.second);
  }
  [[nodiscard]] std::size_t count() const { return action_.size(); }
  [[nodiscard]] EventSpan span(std::size_t first, std::size_t count) const {
    const auto part = [&](const auto& column) { return std::span(column).subspan(first, count); };
    return {part(action_), part(address_),    part(size_),
            part(stream_), part(pool_first_), part(pool_second_)};
  }
  [[nodiscard]] EventSpan span(std::size_t first = 0) const { return span(first, count() - first); }

 private:
  std::vector<std::uint8_t> action_;
  std::vector<Address> address_;
  std::vector<Bytes> size_;
  std::vector<StreamId> stream_;
  std::vector<std::uint64_t> pool_first_;
  std::vector<std::uint64_t> pool_second_;
};

}  // namespace plimsoll
