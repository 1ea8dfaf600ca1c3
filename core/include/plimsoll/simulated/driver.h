// A simulated driver: a GPU of any size, with an explicit clock, priced calls and faults on demand.
//
// A SimulatedHost is the machine: its clock and the host memory that the GPUs may share. Each
// SimulatedDriver is one GPU of it. Every call has a price (CostModel), which advances the clock
// and is added up in `driver_seconds`. GPU work is a duration queued on a stream, so an event is
// complete once the clock has passed the end of what was queued before it.
//
// Memory holds tags instead of data: a test writes one to a range, and finds it wherever copies and
// mappings have brought it. A copy moves its tags when it is queued; taking its memory away before
// it is complete is invalid, where a real GPU would corrupt memory or be lost.
//
// Driver models: `linux` fails a device allocation when dedicated memory is full; `wddm`, the
// Windows model, fills dedicated memory and goes on into shared memory, and fails when both are
// full.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/address_space.h"
#include "plimsoll/simulated/tags.h"

namespace plimsoll {

enum class DriverModel : std::uint8_t { linux, wddm };

enum class Call : std::uint8_t {
  allocate,
  deallocate,
  reserve,
  unreserve,
  create,
  release,
  map,
  set_access,
  unmap,
  record,
  query,
  synchronize,
  allocate_host,
  deallocate_host,
  copy,
  count,
};
inline constexpr std::size_t kCallCount = static_cast<std::size_t>(Call::count);

// A price that grows with the size: `at_granule` ns for 2 MiB, `at_512_mib` ns for 512 MiB,
// linear between and beyond.
struct Price {
  double at_granule = 0;
  double at_512_mib = 0;
  [[nodiscard]] double of(Bytes size) const;
};

// Nanoseconds a call, measured on one H100 80GB (driver 580, CUDA 13.0, PCIe Gen5): the middle of
// each measured range.
struct CostModel {
  Price allocate{35'000, 70'000};
  Price deallocate{37'000, 170'000};
  Price create{10'000, 22'000};
  Price release{16'000, 180'000};
  double reserve = 2'000;
  double map_per_handle = 3'000;
  double set_access_per_handle = 29'000;
  double unmap_per_handle = 22'000;
  double event = 1'000;
  double host_bytes_per_ns = 5.65;            // 1 GiB of host memory pinned in 0.19 s
  double copy_bytes_per_ns = 55.0;            // host and device, pinned, each way
  double device_copy_bytes_per_ns = 1'515.0;  // 3029 GB/s, of reading and writing together
};

// Makes the calls numbered after + 1 … after + times of one kind fail, counted from now.
struct Fault {
  Call call = Call::allocate;
  std::uint64_t after = 0;
  std::uint64_t times = std::numeric_limits<std::uint64_t>::max();
  Status status = Status::out_of_memory;
};

class SimulatedHost {
 public:
  explicit SimulatedHost(Bytes shared_capacity) : shared_capacity_(shared_capacity) {}

  [[nodiscard]] double now_ns() const { return now_ns_; }
  // The clock never goes back.
  void advance_to(double time_ns) { now_ns_ = time_ns > now_ns_ ? time_ns : now_ns_; }
  void advance(double duration_ns) { advance_to(now_ns_ + duration_ns); }

  [[nodiscard]] MemoryInfo shared_info() const {
    return {shared_capacity_ - shared_used_, shared_capacity_};
  }

 private:
  friend class SimulatedDriver;
  Bytes shared_capacity_;
  Bytes shared_used_ = 0;
  double now_ns_ = 0;
};

class SimulatedDriver final : public Driver {
 public:
  // `host` outlives the driver. `ordinal` separates the address spaces of several GPUs.
  SimulatedDriver(SimulatedHost& host, Bytes dedicated_capacity,
                  DriverModel model = DriverModel::linux, std::uint32_t ordinal = 0);

  Status allocate(Bytes size, Address& address) override;
  Status deallocate(Address address) override;
  Status allocate_host(Bytes size, Address& address) override;
  Status deallocate_host(Address address) override;
  Status reserve(Bytes size, Address& address) override;
  Status unreserve(Address address, Bytes size) override;
  Status create(Bytes size, Tier tier, Handle& handle) override;
  Status release(Handle handle) override;
  Status map(Address address, Bytes size, Handle handle) override;
  Status set_access(Address address, Bytes size) override;
  Status unmap(Address address, Bytes size) override;
  Status record(StreamId stream, Event& event) override;
  Status query(Event event) override;
  [[nodiscard]] const std::set<StreamId>* streams_to_query() const override {
    return &streams_with_open_events_;
  }
  Status synchronize(Event event) override;
  Status destroy(Event event) override;
  Status wait(StreamId stream, Event event) override;
  Status synchronize_stream(StreamId stream) override;
  Status synchronize() override;
  Status copy(Address to, Address from, Bytes size, StreamId stream) override;
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] MemoryInfo shared_info() const override { return host_.shared_info(); }
  [[nodiscard]] std::int64_t now_us() const override;

  // Queues work of `duration_ns` on a stream; the host does not wait.
  void launch(StreamId stream, double duration_ns);
  // Waits like `synchronize`, but not for work of unknown length.
  void synchronize_device();
  // When all work queued on a stream so far will be done.
  [[nodiscard]] double done_at_ns(StreamId stream) const;
  // Work of unknown length: the stream stays busy until `finish`, or until somebody waits for it.
  void hold(StreamId stream);
  void finish(StreamId stream);

  // What memory holds: 0 if nothing was written since it was made. Throws std::logic_error where
  // there is no memory that the GPU can access.
  void write_tag(Address address, Bytes size, std::uint64_t tag);
  [[nodiscard]] std::uint64_t tag_at(Address address);

  // The next allocation, if it is of this size, gets this address, if it is free; later ones follow
  // in order. Reservations have a queue of their own.
  void feed_allocation(Address address, Bytes size) { fed_.push_back({address, size}); }
  void feed_reservation(Address address) { fed_reservations_.push_back(address); }
  void forget_fed_addresses() {
    fed_.clear();
    fed_reservations_.clear();
  }

  void inject(const Fault& fault) { faults_.push_back({fault, 0}); }
  void clear_faults() { faults_.clear(); }

  [[nodiscard]] SimulatedHost& host() { return host_; }
  [[nodiscard]] DriverModel model() const { return model_; }
  [[nodiscard]] bool spills() const override { return model_ == DriverModel::wddm; }
  [[nodiscard]] Bytes dedicated_used() const { return dedicated_used_; }
  [[nodiscard]] Bytes shared_used() const { return shared_used_; }
  // What of it is not page-locked memory, which the host asked for.
  [[nodiscard]] Bytes spilled() const { return shared_used_ - page_locked_; }
  // How much of a range is in shared memory.
  [[nodiscard]] Bytes shared_in(Address address, Bytes size);
  [[nodiscard]] double driver_seconds() const { return driver_ns_ * 1e-9; }
  [[nodiscard]] std::uint64_t calls(Call call) const {
    return calls_[static_cast<std::size_t>(call)];
  }
  // What exists now, and nobody gave back yet.
  [[nodiscard]] std::size_t reservations() const { return reservations_.size(); }
  [[nodiscard]] std::size_t handles() const { return handles_.size(); }
  [[nodiscard]] std::size_t mappings() const { return mappings_.size(); }
  [[nodiscard]] std::size_t events() const { return events_.size(); }
  [[nodiscard]] Bytes reserved_addresses() const {
    Bytes bytes = 0;
    for (const auto& [address, size] : reservations_) bytes += size;
    return bytes;
  }
  [[nodiscard]] CostModel& costs() { return costs_; }

 private:
  struct Physical {  // where an allocation or a handle lives
    Bytes size = 0;
    Bytes dedicated = 0;
    Bytes shared = 0;
  };
  struct Memory {  // behind a handle
    Physical physical;
    std::uint32_t mappings = 0;
    bool released = false;
    Tags tags;
  };
  struct Mapping {
    Bytes size = 0;
    Handle handle = 0;
    bool accessible = false;
  };
  struct Stream {
    double busy_until_ns = 0;
    bool held = false;
    std::uint64_t finishes = 0;
    std::uint64_t blocked_events = 0;  // recorded while it was held, and not finished since
    std::uint64_t open_events = 0;     // all others
  };
  struct Recorded {
    StreamId stream = 0;
    double completes_at_ns = 0;
    bool held = false;
    std::uint64_t finishes = 0;
  };
  struct Place {  // memory of one tier from an address on
    Tags* tags = nullptr;
    Address offset = 0;  // in the tags
    Bytes size = 0;
    Tier tier = Tier::dedicated;
  };
  struct QueuedCopy {
    Address to = 0;
    Address from = 0;
    Bytes size = 0;
    Recorded done;
  };
  struct Fed {
    Address address = 0;
    Bytes size = 0;
  };
  struct ArmedFault {
    Fault fault;
    std::uint64_t seen = 0;
  };

  Status begin(Call call);
  void charge(double duration_ns);
  [[nodiscard]] std::optional<Physical> take(Bytes size, Tier tier);
  void give_back(const Physical& physical);
  [[nodiscard]] std::optional<Address> fed_address(Bytes size);
  [[nodiscard]] std::optional<Address> fed_reservation(Bytes size);
  [[nodiscard]] bool is_vacant(Address address, Bytes size) const;
  [[nodiscard]] Address take_address(Bytes size);
  void give_address(Address address, Bytes size);
  Status allocate_small(Bytes size, Address& address);
  void deallocate_small(Address address, Bytes size);
  void forget_mapping_of(Handle handle);
  [[nodiscard]] std::size_t handles_in(Address address, Bytes size) const;
  [[nodiscard]] bool is_complete(const Recorded& recorded) const;
  [[nodiscard]] bool is_blocked(const Recorded& recorded) const;
  [[nodiscard]] std::optional<Place> place_of(Address address);
  [[nodiscard]] bool leaves_host_allocation(Address address, Bytes size) const;
  [[nodiscard]] Place known_place_of(Address address);
  void forget_finished_copies();
  [[nodiscard]] bool is_being_copied(Address address, Bytes size);

  SimulatedHost& host_;
  Bytes dedicated_capacity_;
  DriverModel model_;
  CostModel costs_;
  Bytes dedicated_used_ = 0;
  Bytes shared_used_ = 0;
  Bytes page_locked_ = 0;
  double driver_ns_ = 0;
  std::array<std::uint64_t, kCallCount> calls_{};

  Address lowest_;                   // of all allocations so far
  AddressSpace returned_;            // given back, above it
  std::map<Address, Bytes> chunks_;  // address space taken for allocations
  AddressSpace chunk_addresses_;     // its free parts
  Address first_reservable_;
  AddressSpace reservable_;
  AddressSpace small_addresses_;  // free parts of granules shared by small allocations
  std::map<Address, Physical> small_granules_;
  std::map<Address, Physical> allocations_;
  std::map<Address, Bytes> small_allocations_;
  std::map<Address, Bytes> host_allocations_;
  std::map<Address, Bytes> reservations_;
  std::map<Address, Mapping> mappings_;
  Tags unmapped_tags_;  // by address, of memory that is no handle's
  std::unordered_map<Handle, Memory> handles_;
  Handle next_handle_ = 1;

  std::unordered_map<StreamId, Stream> streams_;
  std::unordered_map<Event, Recorded> events_;
  std::set<StreamId> streams_with_open_events_;
  Event next_event_ = 1;
  std::vector<QueuedCopy> copies_;

  std::deque<Fed> fed_;
  std::deque<Address> fed_reservations_;
  std::vector<ArmedFault> faults_;
};

}  // namespace plimsoll
