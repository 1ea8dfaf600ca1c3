// A simulated driver: a GPU of any size, with an explicit clock, priced calls and faults on demand.
//
// A SimulatedHost is the machine; each SimulatedDriver is one GPU of it. Every call takes a time
// (costs.h), which advances the machine's clock and adds to `driver_seconds`; each call can be made
// to fail (calls.h). GPU work is a duration queued on a stream (streams.h).
//
// Memory (allocations.h, virtual_memory.h, page_locked_memory.h) holds tags instead of data: a test
// writes a tag to a range and finds it again after copies and new mappings. A copy moves its tags
// when it is queued. Freeing or unmapping memory that an incomplete copy uses is invalid; a real
// GPU would corrupt memory or be lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>

#include "plimsoll/driver/driver.h"
#include "plimsoll/simulated/allocations.h"
#include "plimsoll/simulated/calls.h"
#include "plimsoll/simulated/content.h"
#include "plimsoll/simulated/costs.h"
#include "plimsoll/simulated/host.h"
#include "plimsoll/simulated/page_locked_memory.h"
#include "plimsoll/simulated/physical_memory.h"
#include "plimsoll/simulated/queued_copies.h"
#include "plimsoll/simulated/streams.h"
#include "plimsoll/simulated/virtual_memory.h"

namespace plimsoll {

class SimulatedDriver final : public Driver {
 public:
  // Takes a `host` that outlives the driver. `ordinal` separates the address spaces of several
  // GPUs.
  SimulatedDriver(SimulatedHost& host, Bytes dedicated_capacity,
                  DriverModel model = DriverModel::linux, std::uint32_t ordinal = 0);

  [[nodiscard]] std::string_view name() const override { return "simulated"; }
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
    return &streams_.with_open_events();
  }
  Status synchronize(Event event) override;
  Status destroy(Event event) override { return streams_.destroy(event); }
  Status wait(StreamId stream, Event event) override { return streams_.wait(stream, event); }
  Status synchronize_stream(StreamId stream) override;
  Status synchronize() override;
  Status copy(Address to, Address from, Bytes size, StreamId stream) override;
  [[nodiscard]] MemoryInfo memory_info() const override { return physical_.dedicated_info(); }
  [[nodiscard]] MemoryInfo shared_info() const override { return physical_.shared_info(); }
  [[nodiscard]] std::int64_t now_us() const override {
    return static_cast<std::int64_t>(host_.now_ns() / 1000);
  }
  [[nodiscard]] bool spills() const override { return model() == DriverModel::wddm; }
  [[nodiscard]] Bytes shared_in(Address address, Bytes size) override;

  // Queues work of `duration_ns` on a stream; the host does not wait.
  void launch(StreamId stream, double duration_ns) { streams_.launch(stream, duration_ns); }
  // Waits for all streams except held ones (see `hold`).
  void synchronize_device() { streams_.synchronize_work(); }
  // Returns the time at which all work queued on a stream so far will be done.
  [[nodiscard]] double done_at_ns(StreamId stream) const { return streams_.done_at_ns(stream); }
  // Queues work of unknown length: the stream stays busy until `finish`, or until the host waits
  // for it.
  void hold(StreamId stream) { streams_.hold(stream); }
  void finish(StreamId stream) { streams_.finish(stream); }

  // Sets the tag of memory; a tag that was never set is 0. Throws std::logic_error if the GPU
  // cannot access memory there.
  void write_tag(Address address, Bytes size, std::uint64_t tag);
  [[nodiscard]] std::uint64_t tag_at(Address address);

  // Makes the next allocation of exactly this size use this address, if the address is free.
  // Several calls queue up, and their addresses are used in order. Reservations have a queue of
  // their own.
  void feed_allocation(Address address, Bytes size) { allocations_.feed(address, size); }
  void feed_reservation(Address address) { virtual_.feed(address); }
  void forget_fed_addresses() {
    allocations_.forget_fed();
    virtual_.forget_fed();
  }

  // Places later allocations at random in two areas; see AllocationAddresses::scatter.
  void scatter_allocations(std::uint64_t seed) { allocations_.scatter(seed); }

  // Shares the card with other processes from now on. `card` outlives the driver.
  void share(SharedCard& card) { physical_.share(card); }

  void inject(const Fault& fault) { calls_.inject(fault); }
  void clear_faults() { calls_.clear_faults(); }

  [[nodiscard]] SimulatedHost& host() { return host_; }
  [[nodiscard]] CostModel& costs() { return costs_; }
  [[nodiscard]] DriverModel model() const { return physical_.model(); }
  [[nodiscard]] Bytes dedicated_used() const { return physical_.dedicated_used(); }
  [[nodiscard]] Bytes most_dedicated_used() const { return physical_.most_dedicated_used(); }
  [[nodiscard]] Bytes shared_used() const { return physical_.shared_used(); }
  // Returns the bytes that the driver put into shared memory because dedicated memory was full.
  [[nodiscard]] Bytes spilled() const { return shared_used() - page_locked_.bytes(); }
  [[nodiscard]] double driver_seconds() const { return driver_ns_ * 1e-9; }
  [[nodiscard]] std::uint64_t calls(Call call) const { return calls_.count(call); }
  // Each of the next four functions returns how many objects of one kind exist.
  [[nodiscard]] std::size_t reservations() const { return virtual_.reservations(); }
  [[nodiscard]] std::size_t handles() const { return virtual_.handles(); }
  [[nodiscard]] std::size_t mappings() const { return virtual_.mappings(); }
  [[nodiscard]] std::size_t events() const { return streams_.events(); }
  // Returns the bytes of all reservations.
  [[nodiscard]] Bytes reserved_addresses() const { return virtual_.reserved_addresses(); }

 private:
  void charge(double duration_ns);
  // Charges the call's time, unless the call is invalid, and returns `status`. A call that fails
  // for lack of memory takes as long as one that succeeds.
  Status charge_valid(Status status, double duration_ns);
  [[nodiscard]] std::optional<MemoryPart> part_at(Address address);
  [[nodiscard]] MemoryPart known_part_at(Address address);

  SimulatedHost& host_;
  CostModel costs_;
  Calls calls_;
  double driver_ns_ = 0;
  PhysicalMemory physical_;
  VirtualMemory virtual_;
  Allocations allocations_;
  PageLockedMemory page_locked_;
  Streams streams_;
  QueuedCopies copies_;
};

}  // namespace plimsoll
