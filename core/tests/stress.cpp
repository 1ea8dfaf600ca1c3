// Many threads make random calls of one elastic allocator. They make every kind of call that
// programs make. The simulated GPU is small and busy, and its driver fails at times. The test keeps
// its own record of who uses each byte of the GPU's physical memory (the shadow). It checks that
//
//   - no two live blocks share a byte, at whatever addresses the memory is mapped;
//   - a stream gets memory only when all other streams have finished their work on that memory;
//   - no address is unmapped while a block or queued work uses it, with one exception: a block that
//     is paused or moved loses its mapping, but keeps its content;
//   - at the end the driver holds no memory, and the allocator's own data lists no block and no
//     memory of the driver.
//
//   stress [--operations N] [--threads N] [--seed N]

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/host/host_pool.h"
#include "plimsoll/base/units.h"
#include "plimsoll/driver/locked.h"
#include "plimsoll/simulated/driver.h"

namespace plimsoll {
namespace {

constexpr Bytes kMemory = 512 * kMiB;
constexpr Bytes kShared = 512 * kMiB;
constexpr RegionId kRegions = 3;
constexpr std::size_t kStreams = 12;
constexpr Bytes kUnit = 512;
constexpr std::size_t kWords = kGranule / kUnit / 64;
// The number of `Granule` objects. Content that leaves the card keeps its objects. So there must be
// more objects than granules of physical memory.
constexpr std::size_t kGranules = 4 * (kMemory + kShared) / kGranule;
constexpr std::size_t kAddressGranules = std::size_t{1} << 21;  // 4 TiB of addresses

using Time = std::int64_t;  // nanoseconds on the driver's clock
using AtomicTime = std::atomic<Time>;

[[noreturn]] void stop(const std::string& reason) {
  std::cerr << "stress: " + reason + '\n';
  std::_Exit(1);
}

void require(bool holds, const char* what) {
  if (!holds) stop(what);
}

void raise(AtomicTime& time, Time to) {
  Time seen = time.load(std::memory_order_relaxed);
  while (seen < to && !time.compare_exchange_weak(seen, to, std::memory_order_relaxed)) {
  }
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t value = state_ += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
  }
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

// --- the GPU -------------------------------------------------------------------------------------

// A granule of physical memory, and the blocks and work that use it.
struct Granule {
  std::array<std::atomic<std::uint64_t>, kWords> live{};  // bit N is 1 if a live block holds unit N
  std::atomic<StreamId> owner{0};
  std::array<AtomicTime, kStreams> used_until{};  // when each stream's work on freed blocks ends
  AtomicTime guests_until{0};
  // For each unit, when the work of the streams that `record_stream` named ends.
  std::array<AtomicTime, kWords * 64> guest_until{};
};

// Describes a granule of address space. `memory` does not change while a block lies in this
// granule. `blocks` is the number of blocks that lie in it.
struct AddressGranule {
  std::atomic<std::uint32_t> memory{0};  // number of the granule mapped here, from 1 on
  std::atomic<std::uint32_t> blocks{0};
  AtomicTime used_until{0};
  bool away = false;  // the content is moving to other memory
};

// A simulated driver for several threads, with the shadow of its memory. A thread can make one of
// its own driver calls fail.
class StressDriver final : public LockedDriver {
 public:
  explicit StressDriver(SimulatedDriver& gpu)
      : LockedDriver(gpu), gpu_(gpu), granules_(kGranules + 1), addresses_(kAddressGranules) {
    for (std::uint32_t i = kGranules; i > 0; --i) free_granules_.push_back(i);
    const Status status = gpu.reserve(kGranule, base_);
    require(status == Status::success && gpu.unreserve(base_, kGranule) == Status::success,
            "the first address is not known");
  }

  // Makes one later driver call of this thread fail: the call with number `count`, counted from
  // now. With 0, no call fails.
  static void fail_call(std::uint64_t count, Status status) {
    calls_until_fault = count;
    fault = status;
    faulted = false;
  }
  static bool has_failed() { return faulted; }
  static bool may_fail() { return calls_until_fault > 0; }
  // Sets whether this thread pauses, resumes or moves live blocks. Only then may its driver calls
  // unmap the memory of live blocks.
  static void set_moving(bool moving) { is_moving = moving; }

  void launch(StreamId stream, Time duration) {
    const auto lock = exclude_calls();
    gpu_.launch(stream, static_cast<double>(duration));
    busy_until_[stream].store(static_cast<Time>(gpu_.done_at_ns(stream)));
  }
  void advance(Time duration) {
    const auto lock = exclude_calls();
    gpu_.host().advance(static_cast<double>(duration));
    note_time();
  }
  // Returns the time at which all work queued on the stream so far will be done.
  [[nodiscard]] Time busy_until(StreamId stream) const { return busy_until_[stream].load(); }
  [[nodiscard]] Time now() const { return now_.load(); }

  // Calls function(granule, address granule, first unit, end unit) once for each granule that the
  // block occupies in whole or in part. The block occupies the units from the first unit up to, but
  // not including, the end unit. Units are numbered from 0 in each granule.
  template <typename Function>
  void for_each_part(Address address, Bytes size, Function function) {
    for (const Address end = address + size; address < end;) {
      const Address stop_at = std::min(end, round_down(address, kGranule) + kGranule);
      AddressGranule& place = address_granule(address);
      const std::uint32_t memory = place.memory.load(std::memory_order_relaxed);
      require(memory != 0, "a block lies where no memory is mapped");
      const auto first = static_cast<std::size_t>(address % kGranule / kUnit);
      function(granules_[memory], place, first,
               first + static_cast<std::size_t>((stop_at - address) / kUnit));
      address = stop_at;
    }
  }

  Status reserve(Bytes size, Address& address) override {
    return attempt([&] { return LockedDriver::reserve(size, address); });
  }
  Status unreserve(Address address, Bytes size) override {
    return attempt([&] { return LockedDriver::unreserve(address, size); });
  }
  Status create(Bytes size, Tier tier, Handle& handle) override {
    return attempt([&] {
      const std::lock_guard lock(mutex_);
      const Status status = LockedDriver::create(size, tier, handle);
      if (status != Status::success) return status;
      Memory& memory = memory_[handle];
      for (Bytes done = 0; done < size; done += kGranule) {
        require(!free_granules_.empty(), "too much is away");
        memory.granules.push_back(free_granules_.back());
        free_granules_.pop_back();
      }
      return status;
    });
  }
  Status release(Handle handle) override {
    return attempt([&] {
      const std::lock_guard lock(mutex_);
      const Status status = LockedDriver::release(handle);
      if (status == Status::success) {
        memory_.at(handle).released = true;
        drop_unused(handle);
      }
      return status;
    });
  }
  Status map(Address address, Bytes size, Handle handle) override {
    return attempt([&] {
      const std::lock_guard lock(mutex_);
      const Status status = LockedDriver::map(address, size, handle);
      if (status != Status::success) return status;
      Memory& memory = memory_.at(handle);
      ++memory.mappings;
      mapped_[address] = handle;
      for (std::size_t i = 0; i < memory.granules.size(); ++i) {
        AddressGranule& place = address_granule(address + i * kGranule);
        const bool was_away = std::exchange(place.away, false);
        // The block that lay at this address was freed while its content was off the card. The new
        // mapping is for another block, so the old content is not needed any more.
        if (was_away && !is_moving) {
          forget_work(granules_[place.memory.load()]);
          free_granules_.push_back(place.memory.load());
        }
        if (was_away && is_moving) {
          const std::uint32_t fresh = std::exchange(memory.granules[i], place.memory.load());
          if (fresh != 0) free_granules_.push_back(fresh);
        } else {
          place.memory.store(memory.granules[i]);
        }
      }
      return status;
    });
  }
  Status set_access(Address address, Bytes size) override {
    return attempt([&] { return LockedDriver::set_access(address, size); });
  }
  Status unmap(Address address, Bytes size) override {
    return attempt([&] {
      const std::lock_guard lock(mutex_);
      const Status status = LockedDriver::unmap(address, size);
      if (status != Status::success) return status;
      for (Address at = address; at < address + size; at += kGranule) {
        AddressGranule& place = address_granule(at);
        require(place.used_until.load() <= now(), "addresses were unmapped under queued work");
        if (is_moving && place.blocks.load() > 0) {
          send_away(at, place);
          continue;
        }
        require(place.blocks.load() == 0, "addresses of a live block were unmapped");
        place.memory.store(0);
      }
      for (auto it = mapped_.lower_bound(address);
           it != mapped_.end() && it->first < address + size; it = mapped_.erase(it)) {
        --memory_.at(it->second).mappings;
        drop_unused(it->second);
      }
      return status;
    });
  }
  Status record(StreamId stream, Event& event) override {
    return attempt([&] { return LockedDriver::record(stream, event); });
  }
  Status query(Event event) override {
    return attempt([&] { return LockedDriver::query(event); });
  }
  Status synchronize(Event event) override {
    return attempt([&] { return LockedDriver::synchronize(event); });
  }
  Status synchronize_stream(StreamId stream) override {
    return attempt([&] { return LockedDriver::synchronize_stream(stream); });
  }
  Status synchronize() override {
    return attempt([&] { return LockedDriver::synchronize(); });
  }
  Status copy(Address to, Address from, Bytes size, StreamId stream) override {
    return attempt([&] { return LockedDriver::copy(to, from, size, stream); });
  }
  Status allocate_host(Bytes size, Address& address) override {
    return attempt([&] { return LockedDriver::allocate_host(size, address); });
  }
  Status deallocate_host(Address address) override {
    return attempt([&] { return LockedDriver::deallocate_host(address); });
  }

  void write_tag(Address address, Bytes size, std::uint64_t tag) {
    const auto lock = exclude_calls();
    gpu_.write_tag(address, size, tag);
  }
  [[nodiscard]] std::uint64_t tag_at(Address address) {
    const auto lock = exclude_calls();
    return gpu_.tag_at(address);
  }

 private:
  struct Memory {
    std::vector<std::uint32_t> granules;
    std::uint32_t mappings = 0;
    bool released = false;
  };

  template <typename Body>
  Status attempt(Body body) {
    if (calls_until_fault > 0 && --calls_until_fault == 0) {
      faulted = true;
      return fault;
    }
    const Status status = body();
    const auto lock = exclude_calls();
    note_time();
    return status;
  }
  void note_time() { now_.store(static_cast<Time>(gpu_.host().now_ns())); }

  AddressGranule& address_granule(Address address) {
    const std::size_t place = (address - base_) / kGranule;
    require(place < kAddressGranules, "the allocator used up all addresses");
    return addresses_[place];
  }

  // Forgets the queued work on a granule whose block was freed while its content was off the card.
  static void forget_work(Granule& granule) {
    for (AtomicTime& until : granule.used_until) until.store(0);
    for (AtomicTime& until : granule.guest_until) until.store(0);
    granule.guests_until.store(0);
  }

  // Marks the content at this address as moving. If a thread that moves blocks is the next to map
  // memory at this address, that memory gets the content.
  void send_away(Address address, AddressGranule& place) {
    const auto& [begin, handle] = *std::prev(mapped_.upper_bound(address));
    memory_.at(handle).granules[(address - begin) / kGranule] = 0;
    place.away = true;
  }

  void drop_unused(Handle handle) {
    const Memory& memory = memory_.at(handle);
    if (!memory.released || memory.mappings > 0) return;
    for (const std::uint32_t number : memory.granules) {
      if (number == 0) continue;  // the content of this granule has moved away
      Granule& granule = granules_[number];
      for (const auto& word : granule.live) {
        require(word.load() == 0, "memory of a live block was released");
      }
      for (const AtomicTime& until : granule.used_until) {
        require(until.load() <= now(), "memory was released under queued work");
      }
      require(granule.guests_until.load() <= now(), "memory was released under a guest's work");
      free_granules_.push_back(number);
    }
    memory_.erase(handle);
  }

  inline static thread_local std::uint64_t calls_until_fault = 0;
  inline static thread_local Status fault = Status::success;
  inline static thread_local bool faulted = false;
  inline static thread_local bool is_moving = false;

  SimulatedDriver& gpu_;
  std::mutex mutex_;
  std::vector<Granule> granules_;
  std::vector<AddressGranule> addresses_;
  Address base_ = 0;
  std::vector<std::uint32_t> free_granules_;
  std::map<Handle, Memory> memory_;
  std::map<Address, Handle> mapped_;
  std::array<AtomicTime, kStreams> busy_until_{};
  AtomicTime now_{0};
};

// --- live blocks ---------------------------------------------------------------------------------

struct Live {
  Address address = 0;
  Bytes requested = 0;
  StreamId stream = 0;
  std::uint32_t guests = 0;  // bit N: besides `stream`, stream N uses the block
  RegionId region = kNoRegion;
  std::uint64_t tag = 0;  // the content's tag; 0 if no thread wrote one
  [[nodiscard]] Bytes size() const { return round_up(requested, kUnit); }
};

std::uint64_t bits(std::size_t first, std::size_t end, std::size_t word) {
  const std::size_t low = std::max(first, word * 64) - word * 64;
  const std::size_t high = std::min(end, word * 64 + 64) - word * 64;
  return (high - low == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (high - low)) - 1) << low;
}

// Marks the block as live, and checks that it overlaps no other live block.
void occupy(StressDriver& driver, const Live& block) {
  driver.for_each_part(
      block.address, block.size(),
      [&](Granule& granule, AddressGranule& place, std::size_t first, std::size_t end) {
        place.blocks.fetch_add(1, std::memory_order_relaxed);
        for (std::size_t word = first / 64; word * 64 < end; ++word) {
          const std::uint64_t mask = bits(first, end, word);
          const std::uint64_t before = granule.live[word].fetch_or(mask, std::memory_order_relaxed);
          require((before & mask) == 0, "two live blocks overlap");
        }
      });
}

// Checks that no other stream still works on the memory of a new block.
void check_stream_order(StressDriver& driver, const Live& block) {
  driver.for_each_part(
      block.address, block.size(),
      [&](Granule& granule, AddressGranule&, std::size_t first, std::size_t end) {
        const Time now = driver.now();
        // The allocator lets only one stream at a time own a granule. So this check is needed only
        // when the owner changes.
        if (granule.owner.load(std::memory_order_relaxed) != block.stream) {
          for (StreamId stream = 0; stream < kStreams; ++stream) {
            require(stream == block.stream ||
                        granule.used_until[stream].load(std::memory_order_relaxed) <= now,
                    "another stream still uses this memory");
          }
          granule.owner.store(block.stream, std::memory_order_relaxed);
        }
        if (granule.guests_until.load(std::memory_order_relaxed) <= now) return;
        for (std::size_t unit = first; unit < end; ++unit) {
          require(granule.guest_until[unit].load(std::memory_order_relaxed) <= now,
                  "a recorded stream still uses this memory");
        }
      });
}

void enter(StressDriver& driver, const Live& block) {
  occupy(driver, block);
  check_stream_order(driver, block);
}

// Marks the block as free in the shadow, and notes when the queued work on its memory will end.
// Call this before the allocator frees the block.
void leave(StressDriver& driver, const Live& block) {
  const Time own = driver.busy_until(block.stream);
  Time guests = 0;
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    if ((block.guests >> stream & 1) != 0) guests = std::max(guests, driver.busy_until(stream));
  }
  driver.for_each_part(
      block.address, block.size(),
      [&](Granule& granule, AddressGranule& place, std::size_t first, std::size_t end) {
        raise(place.used_until, std::max(own, guests));
        raise(granule.used_until[block.stream], own);
        if (guests > driver.now()) {
          raise(granule.guests_until, guests);
          for (std::size_t unit = first; unit < end; ++unit) {
            raise(granule.guest_until[unit], guests);
          }
        }
        for (std::size_t word = first / 64; word * 64 < end; ++word) {
          const std::uint64_t mask = bits(first, end, word);
          const std::uint64_t before =
              granule.live[word].fetch_and(~mask, std::memory_order_relaxed);
          require((before & mask) == mask, "a live block was lost");
        }
        place.blocks.fetch_sub(1, std::memory_order_relaxed);
      });
}

// --- the program ---------------------------------------------------------------------------------

struct Options {
  std::uint64_t operations = 1'000'000;
  std::uint64_t threads = 8;
  std::uint64_t seed = 1;
};

struct Counts {
  std::uint64_t operations = 0;
  std::uint64_t mallocs = 0;
  std::uint64_t ooms = 0;
  std::uint64_t frees = 0;
  std::uint64_t handed_over = 0;
  std::uint64_t recorded = 0;
  std::uint64_t placed = 0;
  std::uint64_t captures = 0;
  std::uint64_t emptied = 0;
  std::uint64_t refused = 0;
  std::uint64_t pauses = 0;
  std::uint64_t resumes = 0;
  std::uint64_t moved = 0;
  std::uint64_t verified = 0;
  std::uint64_t faults = 0;
  std::uint64_t errors = 0;

  template <typename Function>
  static void for_each(Function function) {
    function("operations", &Counts::operations);
    function("mallocs", &Counts::mallocs);
    function("ooms", &Counts::ooms);
    function("frees", &Counts::frees);
    function("handed over", &Counts::handed_over);
    function("recorded uses", &Counts::recorded);
    function("placed", &Counts::placed);
    function("captures", &Counts::captures);
    function("emptied", &Counts::emptied);
    function("refused in paused regions", &Counts::refused);
    function("pauses", &Counts::pauses);
    function("resumes", &Counts::resumes);
    function("MiB back on the card", &Counts::moved);
    function("contents verified", &Counts::verified);
    function("faults", &Counts::faults);
    function("errors", &Counts::errors);
  }
};

struct Mailbox {
  std::mutex mutex;
  std::vector<Live> blocks;
};

// Makes a random plan, without knowledge of the requests that the threads will make. The plan's
// sizes lie in the range of the larger requests, so some requests do get a planned place. Planned
// places may overlap each other, and a block may already lie in a planned place.
std::shared_ptr<const ProgramPlan> wrong_plan(Random& random) {
  auto plan = std::make_shared<ProgramPlan>();
  plan->streams.resize(1 + random.below(kStreams));
  for (StreamPlan& stream : plan->streams) {
    for (std::uint64_t i = 1 + random.below(200); i > 0; --i) {
      const Bytes size = kMiB + kUnit * (1 + random.below(39 * kMiB / kUnit));
      const Bytes least = random.one_in(2) ? kMiB + kUnit : size;
      const Bytes offset = kUnit * random.below(128 * kMiB / kUnit);
      stream.slots.push_back({size, least, random.one_in(20) ? PlanSlot::kElsewhere : offset});
    }
    const auto slots = static_cast<std::uint32_t>(stream.slots.size());
    stream.sections = {{slots, 1 + static_cast<std::uint32_t>(random.below(3))}};
  }
  plan->check();
  return plan;
}

// The state that all threads share.
struct Machine {
  explicit Machine(const Options& chosen)
      : options(chosen), boxes(chosen.threads), live_of(chosen.threads) {
    Random random(chosen.seed);
    if (!random.one_in(3)) elastic.set_plan(wrong_plan(random));
  }

  Options options;
  SimulatedHost host{kShared};
  SimulatedDriver gpu{host, kMemory};
  StressDriver driver{gpu};
  HostPool pool{driver};
  ElasticAllocator elastic{driver, AllocatorConfig{}};
  ElasticAllocator& allocator = elastic;
  std::vector<Mailbox> boxes;
  // How many captures have begun, and how many have ended. `Worker::record_stream` uses these
  // numbers to find out whether a capture may be running. A captured graph orders its streams'
  // work, so during a capture the test does not check that the stream finishes before the memory is
  // used again.
  std::atomic<std::uint64_t> captures_begun{0};
  std::atomic<std::uint64_t> captures_ended{0};
  std::vector<std::vector<Live>> live_of;  // the live blocks of each thread
  // A thread that moves live blocks holds this lock exclusively, so that no other thread queues
  // work or touches memory that may move.
  std::shared_mutex still;
  bool spills = false;  // constant during a round
};

class Worker {
 public:
  Worker(Machine& machine, std::size_t number)
      : machine_(machine),
        allocator_(machine.allocator),
        driver_(machine.driver),
        number_(number),
        random_(machine.options.seed * 1'000'003 + number),
        live_(machine.live_of[number]) {}

  void run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) step();
    counts_.operations += operations;
  }

  // Ends open pools and captures, and frees this thread's blocks.
  void end() {
    leave_pool();
    for (const PoolId pool : std::exchange(pools_, {})) release(pool);
    take_from_box();
    while (!live_.empty()) free(live_.size() - 1);
  }

  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  void step() {
    if (in_pool_ && random_.one_in(50)) leave_pool();
    const bool fails = random_.one_in(64);
    if (fails) {
      driver_.fail_call(1 + random_.below(12),
                        random_.one_in(2) ? Status::out_of_memory : Status::failed);
    }
    const std::uint64_t choice = random_.below(10'000);
    if (choice < 4'600) {
      if (live_.size() < target_) {
        malloc();
      } else {
        free_any();
      }
    } else if (choice < 9'000) {
      free_any();
    } else {
      seldom(choice - 9'000);
    }
    if (fails) {
      if (driver_.has_failed()) ++counts_.faults;
      driver_.fail_call(0, Status::success);
    }
  }

  void seldom(std::uint64_t choice) {
    if (choice < 150) {
      hand_over();
    } else if (choice < 300) {
      take_from_box();
    } else if (choice < 500) {
      record_stream();
    } else if (choice < 700) {
      const std::shared_lock still(machine_.still);
      driver_.launch(random_stream(), static_cast<Time>(random_.below(2'000'000)));
    } else if (choice < 800) {
      driver_.advance(static_cast<Time>(random_.below(4'000'000)));
    } else if (choice < 850) {
      locate();
    } else if (choice < 865) {
      pause();
    } else if (choice < 890) {
      resume();
    } else if (choice < 900) {
      rebalance();
    } else if (choice < 940) {
      target_ = 10 + random_.below(100);
    } else if (choice < 945) {
      if (!in_pool_) enter_pool();
    } else if (choice < 960) {
      if (!pools_.empty() && !in_pool_) release_any_pool();
    } else if (choice < 965) {
      empty_cache();
    } else if (choice < 975) {
      look_at_everything();
    } else if (choice < 980) {
      place();
    } else if (choice < 985) {
      allocator_.set_limit(random_.one_in(4) ? std::optional(kMemory / 16 + random_.below(kMemory))
                                             : std::nullopt);
    } else if (choice < 987) {
      machine_.elastic.set_shared_limit(random_.one_in(4) ? std::optional(random_.below(kShared))
                                                          : std::nullopt);
    } else if (choice < 988) {
      allocator_.reset_peak_statistics();
      if (random_.one_in(4)) allocator_.reset_accumulated_statistics();
    } else {
      poll();
    }
  }

  [[nodiscard]] StreamId random_stream() {
    return random_.one_in(4) ? random_.below(kStreams) : number_ % kStreams;
  }

  [[nodiscard]] Bytes random_size() {
    const std::uint64_t kind = random_.below(100);
    const Bytes most = kind < 70 ? 8 * kKiB : kind < 93 ? kMiB : kind < 99 ? 8 * kMiB : 40 * kMiB;
    return 1 + random_.below(most);
  }

  // Runs an operation and returns whether it succeeded. A DriverError stops the test, unless
  // `fail_call` has made a driver call of this step fail.
  template <typename Body>
  bool attempt(Body body) {
    try {
      body();
      return true;
    } catch (const OutOfMemory&) {
      ++counts_.ooms;
    } catch (const HostOutOfMemory&) {
      ++counts_.ooms;
    } catch (const DriverError& error) {
      if (!driver_.has_failed()) stop(std::string("without a fault, ") + error.what());
      ++counts_.errors;
    }
    return false;
  }

  void malloc() {
    Live block{0, random_size(), random_stream(), 0};
    bool is_refused = false;
    if (attempt([&] { is_refused = !allocate(block); })) {
      ++(is_refused ? counts_.refused : counts_.mallocs);
    } else {
      for (std::size_t i = live_.size() / 2; i > 0; --i) free_any();
    }
  }

  // Allocates the block. Returns false if its region is paused.
  bool allocate(Live& block) {
    const bool is_placed = random_.one_in(16);
    std::shared_lock still(machine_.still, std::defer_lock);
    if (is_placed || machine_.spills) still.lock();
    if (!is_placed) {
      block.address = allocator_.allocate(block.requested, block.stream);
    } else {
      block.region = static_cast<RegionId>(random_.below(kRegions + 1));
      ThisThread::set_placement(
          Placement{block.region, random_.one_in(3) ? Tier::shared : Tier::dedicated});
      const Unplaced at_end;
      try {
        block.address = allocator_.allocate(block.requested, block.stream);
      } catch (const std::invalid_argument&) {
        require(block.region != kNoRegion, "no region is paused, and yet a request is refused");
        return false;
      }
      block.tag = random_.next() | 1;
      driver_.write_tag(block.address, block.size(), block.tag);
    }
    enter(driver_, block);
    live_.push_back(block);
    return true;
  }

  struct Unplaced {
    ~Unplaced() { ThisThread::set_placement(std::nullopt); }
  };

  void verify(const Live& block) {
    if (block.tag == 0) return;
    const std::shared_lock still(machine_.still);
    if (block.region != kNoRegion && machine_.elastic.is_paused(block.region)) return;
    for (Bytes at = 0; at < block.size(); at += kGranule / 2) {
      require(driver_.tag_at(block.address + at) == block.tag, "content was lost");
    }
    require(driver_.tag_at(block.address + block.size() - 1) == block.tag, "content was lost");
    ++counts_.verified;
  }

  void free_any() {
    if (!live_.empty()) free(static_cast<std::size_t>(random_.below(live_.size())));
  }

  void free(std::size_t which) {
    const Live block = live_[which];
    verify(block);
    // If the free fails, the block is live again. So no thread may move its memory until the free
    // has succeeded.
    std::shared_lock still(machine_.still, std::defer_lock);
    if (driver_.may_fail()) still.lock();
    leave(driver_, block);
    bool found = false;
    while (!attempt([&] { found = allocator_.free(block.address); })) {
      occupy(driver_, block);  // the free failed, so the block is live again
      leave(driver_, block);
    }
    require(found, "a live block was not found by its address");
    ++counts_.frees;
    live_[which] = live_.back();
    live_.pop_back();
  }

  void hand_over() {
    if (live_.empty()) return;
    Mailbox& box = machine_.boxes[random_.below(machine_.boxes.size())];
    const std::lock_guard lock(box.mutex);
    box.blocks.push_back(live_.back());
    live_.pop_back();
    ++counts_.handed_over;
  }

  void take_from_box() {
    Mailbox& box = machine_.boxes[number_];
    const std::lock_guard lock(box.mutex);
    live_.insert(live_.end(), box.blocks.begin(), box.blocks.end());
    box.blocks.clear();
  }

  void record_stream() {
    if (live_.empty()) return;
    Live& block = live_[static_cast<std::size_t>(random_.below(live_.size()))];
    const StreamId stream = random_.below(kStreams);
    const std::uint64_t ended = machine_.captures_ended.load();
    const std::uint64_t begun = machine_.captures_begun.load();
    require(allocator_.record_stream(block.address, stream), "a live block was not found");
    ++counts_.recorded;
    const bool captured = begun != ended || begun != machine_.captures_begun.load();
    if (!captured && stream != block.stream) block.guests |= std::uint32_t{1} << stream;
  }

  void locate() {
    if (live_.empty()) return;
    const Live& block = live_[static_cast<std::size_t>(random_.below(live_.size()))];
    const std::optional<Location> found =
        allocator_.locate(block.address + random_.below(block.requested));
    require(found && found->block == block.address && found->requested == block.requested &&
                found->stream == block.stream && found->block_size >= block.size(),
            "a live block is not where it was");
  }

  // --- private pools

  void enter_pool() {
    const PoolId pool{number_ + 1, 1 + random_.below(3)};
    allocator_.use_pool(pool);
    // Pool 1 is no_split from the start, before it has a block.
    if (pool.second == 1) allocator_.set_pool_option(pool, PoolOption::no_split, true);
    machine_.captures_begun.fetch_add(1);
    const std::uint64_t kind = random_.below(4);
    allocator_.begin_allocate_to_pool(
        pool, kind == 0   ? Allocator::Filter{}
              : kind == 1 ? [thread = std::this_thread::get_id()](
                                StreamId) { return std::this_thread::get_id() == thread; }
                          : Allocator::only_on(number_ % kStreams));
    release(pool);
    pools_.push_back(pool);
    in_pool_ = pool;
    ++counts_.captures;
    if (random_.one_in(4))
      allocator_.set_pool_option(pool, PoolOption::use_on_oom, random_.one_in(2));
  }

  void leave_pool() {
    if (!in_pool_) return;
    allocator_.end_allocate_to_pool(*in_pool_);
    machine_.captures_ended.fetch_add(1);
    in_pool_.reset();
    while (pools_.size() > 4) release_any_pool();
  }

  void release_any_pool() {
    const auto which = static_cast<std::ptrdiff_t>(random_.below(pools_.size()));
    release(pools_[static_cast<std::size_t>(which)]);
    pools_.erase(pools_.begin() + which);
  }

  void release(PoolId pool) {
    require(allocator_.pool_uses(pool) > 0, "a pool lost its uses");
    allocator_.release_pool(pool);
  }

  // --- moves of live blocks

  template <typename Body>
  void move_blocks(Body body) {
    const std::lock_guard alone(machine_.still);
    driver_.set_moving(true);
    attempt([&] {
      try {
        body();
      } catch (const std::invalid_argument&) {  // no region, wrong state, or a capture is running
        ++counts_.refused;
      }
    });
    driver_.set_moving(false);
  }

  [[nodiscard]] RegionId random_region() {
    return static_cast<RegionId>(1 + random_.below(kRegions));
  }

  void pause() {
    move_blocks([&] {
      machine_.elastic.pause(random_region(), {&machine_.pool});
      ++counts_.pauses;
    });
  }

  void resume() {
    move_blocks([&] {
      machine_.elastic.resume(random_region());
      ++counts_.resumes;
    });
  }

  void rebalance() {
    move_blocks(
        [&] { counts_.moved += machine_.elastic.rebalance(random_.below(kMemory)) / kMiB; });
  }

  // --- calls for the whole allocator

  void empty_cache() {
    const PoolId pool = random_.one_in(2) || pools_.empty() ? PoolId{} : pools_.back();
    if (attempt([&] { allocator_.empty_cache(pool); })) ++counts_.emptied;
  }

  void poll() {
    attempt([&] { machine_.elastic.poll(); });
  }

  void look_at_everything() {
    const Statistics statistics = allocator_.statistics();
    require(statistics.reserved_bytes.all.current <= static_cast<std::int64_t>(kMemory + kShared),
            "more is reserved than there is");
    require(statistics.allocated_bytes.all.peak >= statistics.allocated_bytes.all.current,
            "a peak lies below what was seen");
    static_cast<void>(allocator_.largest_free_block());
    static_cast<void>(allocator_.limit());
    Address end = 0;
    for (const SegmentInfo& segment : allocator_.segments()) {
      require(segment.address >= end, "two segments overlap");
      end = segment.address + segment.total_size;
    }
  }

  // Allocates a block at a free address, unless another thread takes that address first.
  void place() {
    for (const SegmentInfo& segment : allocator_.segments()) {
      if (!random_.one_in(3)) continue;
      for (const BlockInfo& info : segment.blocks) {
        if (info.state != BlockState::inactive || info.size < 4 * kUnit) continue;
        const Live block{info.address + kUnit, info.size - 2 * kUnit, segment.stream, 0};
        const std::shared_lock still(machine_.still);
        try {
          allocator_.allocate_at(block.address, block.requested, block.stream, segment.pool);
        } catch (const std::invalid_argument&) {
          return;
        }
        ++counts_.placed;
        enter(driver_, block);
        live_.push_back(block);
        return;
      }
    }
  }

  Machine& machine_;
  ElasticAllocator& allocator_;
  StressDriver& driver_;
  std::size_t number_;
  Random random_;
  std::vector<Live>& live_;
  std::size_t target_ = 50;    // the largest number of live blocks
  std::vector<PoolId> pools_;  // each entry still needs one `release`
  std::optional<PoolId> in_pool_;
  Counts counts_;
};

// Checks that the allocator's data agree with the threads' blocks. Call it while no thread runs.
void check_books(Machine& machine) {
  machine.elastic.check_invariants();
  std::int64_t count = 0;
  std::int64_t requested = 0;
  const auto add = [&](const std::vector<Live>& blocks) {
    for (const Live& block : blocks) {
      ++count;
      requested += static_cast<std::int64_t>(block.requested);
    }
  };
  for (const auto& blocks : machine.live_of) add(blocks);
  for (const Mailbox& box : machine.boxes) add(box.blocks);
  const Statistics statistics = machine.allocator.statistics();
  require(statistics.allocation.all.current == count, "a live block is not counted");
  require(statistics.requested_bytes.all.current >= requested, "requested bytes are not counted");
  require(statistics.active.all.current >= count, "an active block is not counted");
}

void check_nothing_is_left(Machine& machine) {
  machine.driver.advance(Time{1'000'000'000'000});
  machine.elastic.poll();
  for (RegionId region = 1; region <= kRegions; ++region) {
    if (machine.elastic.is_paused(region)) machine.elastic.resume(region);
  }
  machine.allocator.empty_cache({});
  check_books(machine);
  const Statistics statistics = machine.allocator.statistics();
  require(statistics.active.all.current == 0, "a freed block stays active");
  require(statistics.reserved_bytes.all.current == 0, "memory stays reserved");
  require(machine.allocator.segments().empty(), "a segment is left");
  machine.pool.empty_cache();
  require(machine.gpu.dedicated_used() == 0, "the driver's memory is not free");
  require(machine.gpu.shared_used() == 0, "the host's memory is not free");
  require(machine.gpu.handles() == 0, "a handle is left");
  require(machine.gpu.mappings() == 0, "a mapping is left");
  require(machine.gpu.events() == 0, "an event is left");
}

void run(const Options& options) {
  Machine machine(options);
  std::vector<Worker> workers;
  workers.reserve(options.threads);
  for (std::size_t i = 0; i < options.threads; ++i) workers.emplace_back(machine, i);

  const std::uint64_t rounds = std::clamp<std::uint64_t>(options.operations / 200'000, 4, 200);
  const std::uint64_t each = options.operations / rounds / options.threads;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::uint64_t round = 0;
  const auto between_rounds = [&]() noexcept {
    try {
      check_books(machine);
    } catch (const std::exception& error) {
      stop(error.what());
    }
    ++round;
    machine.spills = round % 2 == 1;
    machine.elastic.set_spill_policy(machine.spills ? SpillPolicy::spill : SpillPolicy::strict);
    if (round * 10 / rounds == (round - 1) * 10 / rounds) return;
    std::cerr << round * 100 / rounds << "% after " << static_cast<int>(seconds()) << " s\n";
  };
  std::barrier barrier(static_cast<std::ptrdiff_t>(options.threads), between_rounds);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) {
    threads.emplace_back([&] {
      try {
        for (std::uint64_t i = 0; i < rounds; ++i) {
          worker.run(each);
          barrier.arrive_and_wait();
        }
      } catch (const std::exception& error) {
        stop(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double elapsed = seconds();
  for (Worker& worker : workers) worker.end();
  check_nothing_is_left(machine);

  Counts total;
  for (const Worker& worker : workers) {
    Counts::for_each([&](const char*, auto member) { total.*member += worker.counts().*member; });
  }
  std::ostringstream summary;
  Counts::for_each(
      [&](const char* name, auto member) { summary << total.*member << ' ' << name << ", "; });
  std::cout << summary.str() << machine.elastic.moves() << " moves; seed " << options.seed << ", "
            << options.threads << " threads, " << elapsed << " s, "
            << static_cast<std::uint64_t>(static_cast<double>(total.operations) / elapsed)
            << " operations/s\n";
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::uint64_t value = std::stoull(argv[i + 1]);
    if (name == "--operations") {
      options.operations = value;
    } else if (name == "--threads") {
      options.threads = value;
    } else if (name == "--seed") {
      options.seed = value;
    } else {
      stop("unknown option " + std::string(name));
    }
  }
  return options;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  try {
    plimsoll::run(plimsoll::parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "stress: " << error.what() << '\n';
    return 1;
  }
}
