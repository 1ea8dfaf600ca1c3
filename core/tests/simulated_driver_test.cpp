#include "plimsoll/simulated/driver.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr double kMillisecond = 1e6;

// A simulated host with one GPU. Checks that each call succeeds, except in `try_allocate`.
struct Machine {
  explicit Machine(Bytes dedicated, Bytes shared = 0, DriverModel model = DriverModel::linux)
      : host(shared), driver(host, dedicated, model) {}

  Address allocate(Bytes size) {
    Address address = 0;
    CHECK_EQUAL(driver.allocate(size, address), Status::success);
    return address;
  }
  Address reserve(Bytes size) {
    Address address = 0;
    CHECK_EQUAL(driver.reserve(size, address), Status::success);
    return address;
  }
  Handle create(Bytes size, Tier tier = Tier::dedicated) {
    Handle handle = 0;
    CHECK_EQUAL(driver.create(size, tier, handle), Status::success);
    return handle;
  }
  void map(Address address, Bytes size, Handle handle) {
    CHECK_EQUAL(driver.map(address, size, handle), Status::success);
  }
  Event record(StreamId stream) {
    Event event = 0;
    CHECK_EQUAL(driver.record(stream, event), Status::success);
    return event;
  }
  Status try_allocate(Bytes size) {
    Address address = 0;
    return driver.allocate(size, address);
  }

  SimulatedHost host;
  SimulatedDriver driver;
};

// Returns how much memory is free and used. A failed call must change none of these amounts.
auto state_of(const SimulatedDriver& driver) {
  const MemoryInfo memory = driver.memory_info();
  return std::tuple(memory.free, memory.total, driver.dedicated_used(), driver.shared_used());
}

bool is_about(double value, double expected) { return std::abs(value - expected) < 1e-6; }

}  // namespace

// --- dedicated memory --------------------------------------------------------------------------

TEST(simulated_driver_counts_whole_granules) {
  Machine machine(64_MiB);
  const Address address = machine.allocate(2_MiB + 1);
  CHECK_EQUAL(address % kGranule, 0U);
  CHECK_EQUAL(machine.driver.dedicated_used(), 4_MiB);
  CHECK_EQUAL(machine.driver.memory_info().free, 60_MiB);
  CHECK_EQUAL(machine.driver.memory_info().total, 64_MiB);
  CHECK_EQUAL(machine.driver.deallocate(address), Status::success);
  CHECK_EQUAL(machine.driver.dedicated_used(), 0U);
}

TEST(simulated_driver_lets_small_allocations_share_granules) {
  Machine machine(4_MiB);
  std::vector<Address> addresses;
  for (Bytes i = 0; i < 2_MiB / 512; ++i) addresses.push_back(machine.allocate(500));
  CHECK_EQUAL(machine.driver.dedicated_used(), 2_MiB);
  const Address in_next_granule = machine.allocate(1);
  CHECK_EQUAL(machine.driver.dedicated_used(), 4_MiB);
  for (const Address address : addresses) {
    CHECK_EQUAL(address % 512, 0U);
    CHECK_EQUAL(machine.driver.dedicated_used(), 4_MiB);
    CHECK_EQUAL(machine.driver.deallocate(address), Status::success);
  }
  CHECK_EQUAL(machine.driver.dedicated_used(), 2_MiB);
  CHECK_EQUAL(machine.driver.deallocate(in_next_granule), Status::success);
  CHECK_EQUAL(machine.driver.dedicated_used(), 0U);
}

TEST(simulated_driver_on_linux_fails_when_dedicated_memory_is_full) {
  Machine machine(8_MiB, 64_MiB);
  machine.allocate(6_MiB);
  CHECK_EQUAL(machine.try_allocate(4_MiB), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.dedicated_used(), 6_MiB);
  machine.allocate(2_MiB);
  CHECK_EQUAL(machine.try_allocate(512), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.shared_used(), 0U);
}

// --- shared memory -----------------------------------------------------------------------------

TEST(simulated_driver_on_windows_goes_on_into_shared_memory) {
  Machine machine(8_MiB, 6_MiB, DriverModel::wddm);
  machine.allocate(6_MiB);
  const Address across = machine.allocate(4_MiB);
  CHECK_EQUAL(machine.driver.dedicated_used(), 8_MiB);
  CHECK_EQUAL(machine.driver.shared_used(), 2_MiB);
  CHECK_EQUAL(machine.try_allocate(6_MiB), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.shared_used(), 2_MiB);
  machine.allocate(4_MiB);
  CHECK_EQUAL(machine.host.shared_info().free, 0U);
  CHECK_EQUAL(machine.try_allocate(512), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.deallocate(across), Status::success);
  CHECK_EQUAL(machine.driver.dedicated_used(), 6_MiB);
  CHECK_EQUAL(machine.driver.shared_used(), 4_MiB);
}

TEST(simulated_driver_shares_the_memory_of_the_host_with_other_gpus) {
  SimulatedHost host(6_MiB);
  SimulatedDriver first(host, 2_MiB, DriverModel::wddm, 0);
  SimulatedDriver second(host, 2_MiB, DriverModel::wddm, 1);
  Address of_first = 0;
  Address of_second = 0;
  CHECK_EQUAL(first.allocate(6_MiB, of_first), Status::success);
  CHECK_EQUAL(second.allocate(6_MiB, of_second), Status::out_of_memory);
  CHECK_EQUAL(second.allocate(4_MiB, of_second), Status::success);
  CHECK_EQUAL(first.shared_used(), 4_MiB);
  CHECK_EQUAL(second.shared_used(), 2_MiB);
  CHECK_EQUAL(host.shared_info().free, 0U);
  CHECK(of_first != of_second);
  CHECK_EQUAL(first.deallocate(of_second), Status::invalid_value);
  CHECK_EQUAL(first.deallocate(of_first), Status::success);
  CHECK_EQUAL(host.shared_info().free, 4_MiB);
}

TEST(simulated_driver_creates_memory_in_the_tier_asked_for) {
  Machine machine(4_MiB, 4_MiB);
  const Handle shared = machine.create(4_MiB, Tier::shared);
  CHECK_EQUAL(machine.driver.shared_used(), 4_MiB);
  CHECK_EQUAL(machine.driver.dedicated_used(), 0U);
  Handle handle = 0;
  CHECK_EQUAL(machine.driver.create(2_MiB, Tier::shared, handle), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.release(shared), Status::success);
  CHECK_EQUAL(machine.driver.shared_used(), 0U);
}

TEST(simulated_driver_counts_pinned_host_memory_as_shared) {
  Machine machine(4_MiB, 8_KiB);
  Address first = 0;
  Address second = 0;
  CHECK_EQUAL(machine.driver.allocate_host(1, first), Status::success);
  CHECK_EQUAL(machine.driver.allocate_host(4_KiB, second), Status::success);
  CHECK(second >= first + 4_KiB || first >= second + 4_KiB);
  CHECK_EQUAL(machine.driver.shared_used(), 8_KiB);
  CHECK_EQUAL(machine.driver.allocate_host(1, second), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.allocate_host(1_GiB, second), Status::out_of_memory);
  CHECK_EQUAL(machine.driver.deallocate_host(first), Status::success);
  CHECK_EQUAL(machine.driver.shared_used(), 4_KiB);
  CHECK_EQUAL(machine.driver.deallocate_host(first), Status::invalid_value);
}

// --- virtual memory ----------------------------------------------------------------------------

TEST(simulated_driver_returns_memory_with_its_last_mapping_and_release) {
  for (const bool release_first : {true, false}) {
    Machine machine(8_MiB);
    const Address range = machine.reserve(4_MiB);
    const Handle handle = machine.create(2_MiB);
    machine.map(range, 2_MiB, handle);
    machine.map(range + 2_MiB, 2_MiB, handle);
    CHECK_EQUAL(machine.driver.set_access(range, 4_MiB), Status::success);
    if (release_first) CHECK_EQUAL(machine.driver.release(handle), Status::success);
    CHECK_EQUAL(machine.driver.unmap(range, 2_MiB), Status::success);
    CHECK_EQUAL(machine.driver.dedicated_used(), 2_MiB);
    CHECK_EQUAL(machine.driver.unmap(range + 2_MiB, 2_MiB), Status::success);
    CHECK_EQUAL(machine.driver.dedicated_used(), release_first ? 0 : 2_MiB);
    if (!release_first) CHECK_EQUAL(machine.driver.release(handle), Status::success);
    CHECK_EQUAL(machine.driver.dedicated_used(), 0U);
    CHECK_EQUAL(machine.driver.unreserve(range, 4_MiB), Status::success);
  }
}

TEST(simulated_driver_unmaps_several_handles_at_once_but_cuts_none) {
  Machine machine(16_MiB);
  const Address range = machine.reserve(8_MiB);
  for (const Bytes offset : {0_MiB, 4_MiB}) {
    const Handle handle = machine.create(4_MiB);
    machine.map(range + offset, 4_MiB, handle);
    CHECK_EQUAL(machine.driver.release(handle), Status::success);
  }
  CHECK_EQUAL(machine.driver.unmap(range, 2_MiB), Status::invalid_value);
  CHECK_EQUAL(machine.driver.unmap(range + 2_MiB, 2_MiB), Status::invalid_value);
  CHECK_EQUAL(machine.driver.unmap(range + 2_MiB, 6_MiB), Status::invalid_value);
  CHECK_EQUAL(machine.driver.unmap(range, 6_MiB), Status::invalid_value);
  CHECK_EQUAL(machine.driver.dedicated_used(), 8_MiB);
  CHECK_EQUAL(machine.driver.unmap(range, 8_MiB), Status::success);
  CHECK_EQUAL(machine.driver.dedicated_used(), 0U);
}

TEST(simulated_driver_reserves_address_space_without_memory) {
  Machine machine(2_MiB);
  const Address first = machine.reserve(1_GiB);
  const Address second = machine.reserve(1_GiB);
  CHECK(second >= first + 1_GiB || first >= second + 1_GiB);
  CHECK_EQUAL(machine.driver.dedicated_used(), 0U);
}

TEST(simulated_driver_refuses_invalid_calls_and_changes_nothing) {
  Machine machine(64_MiB, 64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address allocation = machine.allocate(4_MiB);
  const Address range = machine.reserve(8_MiB);
  const Handle handle = machine.create(4_MiB);
  machine.map(range, 4_MiB, handle);
  const Handle unmapped = machine.create(2_MiB);
  const Handle released = machine.create(4_MiB);
  CHECK_EQUAL(driver.release(released), Status::success);

  Address address = 1;
  Handle made = 1;
  const std::vector<std::function<Status()>> calls{
      [&] { return driver.allocate(0, address); },
      [&] { return driver.deallocate(allocation + 512); },
      [&] { return driver.deallocate(range); },
      [&] { return driver.reserve(0, address); },
      [&] { return driver.reserve(1_MiB, address); },
      [&] { return driver.unreserve(range, 4_MiB); },
      [&] { return driver.unreserve(range + 2_MiB, 6_MiB); },
      [&] { return driver.unreserve(range, 8_MiB); },  // memory is mapped there
      [&] { return driver.create(0, Tier::dedicated, made); },
      [&] { return driver.create(3_MiB, Tier::shared, made); },
      [&] { return driver.release(released); },
      [&] { return driver.release(99); },
      [&] { return driver.map(range + 4_MiB, 4_MiB, released); },
      [&] { return driver.map(range + 4_MiB, 4_MiB, 99); },
      [&] { return driver.map(range + 4_MiB, 4_MiB, unmapped); },      // larger than the handle
      [&] { return driver.map(range + 4_MiB + 1, 2_MiB, unmapped); },  // not aligned to a granule
      [&] { return driver.map(range + 2_MiB, 2_MiB, unmapped); },      // mapped already
      [&] { return driver.map(range + 8_MiB, 2_MiB, unmapped); },      // not reserved
      [&] { return driver.map(range - 2_MiB, 2_MiB, unmapped); },
      [&] { return driver.map(range + 6_MiB, 4_MiB, handle); },  // exceeds the reservation
      [&] { return driver.set_access(range + 4_MiB, 2_MiB); },   // nothing is mapped there
      [&] { return driver.set_access(range, 1_MiB); },
      [&] { return driver.unmap(range + 4_MiB, 2_MiB); },
      [&] { return driver.unmap(range, 1_MiB); },
      [&] { return driver.query(99); },
      [&] { return driver.synchronize(99); },
      [&] { return driver.destroy(99); },
      [&] { return driver.allocate_host(0, address); },
      [&] { return driver.deallocate_host(allocation); },
  };
  const auto before = state_of(driver);
  const double now = machine.host.now_ns();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Status status = calls[i]();
    if (status != Status::invalid_value) check::fail(__FILE__, __LINE__, std::to_string(i));
    CHECK(state_of(driver) == before);
  }
  CHECK_EQUAL(machine.host.now_ns(), now);
  CHECK_EQUAL(address, 1U);
  CHECK_EQUAL(made, 1U);
  CHECK_EQUAL(driver.unmap(range, 4_MiB), Status::success);
  CHECK_EQUAL(driver.unreserve(range, 8_MiB), Status::success);
  CHECK_EQUAL(driver.deallocate(allocation), Status::success);
}

// --- faults ------------------------------------------------------------------------------------

TEST(simulated_driver_fails_the_calls_that_a_fault_names) {
  Machine machine(64_MiB);
  machine.driver.inject({Call::allocate, 1, 2, Status::not_supported});
  CHECK_EQUAL(machine.try_allocate(2_MiB), Status::success);
  CHECK_EQUAL(machine.try_allocate(2_MiB), Status::not_supported);
  CHECK_EQUAL(machine.try_allocate(512), Status::not_supported);
  CHECK_EQUAL(machine.try_allocate(2_MiB), Status::success);
  CHECK_EQUAL(machine.driver.calls(Call::allocate), 4U);
}

TEST(simulated_driver_fails_for_good_until_faults_are_cleared) {
  Machine machine(64_MiB);
  machine.driver.inject({Call::create});
  Handle handle = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK_EQUAL(machine.driver.create(2_MiB, Tier::dedicated, handle), Status::out_of_memory);
  }
  machine.driver.clear_faults();
  CHECK_EQUAL(machine.driver.create(2_MiB, Tier::dedicated, handle), Status::success);
}

TEST(simulated_driver_changes_nothing_when_a_fault_strikes) {
  Machine machine(64_MiB, 64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address allocation = machine.allocate(4_MiB);
  const Address range = machine.reserve(4_MiB);
  const Handle mapped = machine.create(2_MiB);
  machine.map(range, 2_MiB, mapped);
  const Handle other = machine.create(2_MiB);
  Event event = machine.record(1);
  Address address = 0;
  Handle handle = 0;
  const std::vector<std::pair<Call, std::function<Status()>>> calls{
      {Call::allocate, [&] { return driver.allocate(2_MiB, address); }},
      {Call::reserve, [&] { return driver.reserve(2_MiB, address); }},
      {Call::create, [&] { return driver.create(2_MiB, Tier::dedicated, handle); }},
      {Call::map, [&] { return driver.map(range + 2_MiB, 2_MiB, other); }},
      {Call::set_access, [&] { return driver.set_access(range, 2_MiB); }},
      {Call::record, [&] { return driver.record(1, event); }},
      {Call::query, [&] { return driver.query(event); }},
      {Call::synchronize, [&] { return driver.synchronize(event); }},
      {Call::synchronize, [&] { return driver.synchronize_stream(1); }},
      {Call::synchronize, [&] { return driver.synchronize(); }},
      {Call::copy, [&] { return driver.copy(allocation, allocation + 2_MiB, 2_MiB, 1); }},
      {Call::allocate_host, [&] { return driver.allocate_host(4_KiB, address); }},
      {Call::unmap, [&] { return driver.unmap(range, 4_MiB); }},
      {Call::unreserve, [&] { return driver.unreserve(range, 4_MiB); }},
      {Call::release, [&] { return driver.release(mapped); }},
      {Call::deallocate, [&] { return driver.deallocate(allocation); }},
      {Call::deallocate_host, [&] { return driver.deallocate_host(address); }},
  };
  for (const auto& [name, call] : calls) {
    const auto before = state_of(driver);
    const double now = machine.host.now_ns();
    driver.inject({name, 0, 1, Status::not_supported});
    CHECK_EQUAL(call(), Status::not_supported);
    CHECK(state_of(driver) == before);
    CHECK_EQUAL(machine.host.now_ns(), now);
    driver.clear_faults();
    CHECK_EQUAL(call(), Status::success);  // the failed call changed nothing
  }
}

// --- the clock ---------------------------------------------------------------------------------

TEST(simulated_driver_completes_an_event_when_the_work_before_it_is_done) {
  Machine machine(4_MiB);
  machine.driver.launch(1, kMillisecond);
  const Event event = machine.record(1);
  machine.driver.launch(1, kMillisecond);  // queued after the event
  CHECK_EQUAL(machine.driver.query(event), Status::not_ready);
  machine.host.advance(0.9 * kMillisecond);
  CHECK_EQUAL(machine.driver.query(event), Status::not_ready);
  machine.host.advance(0.1 * kMillisecond);
  CHECK_EQUAL(machine.driver.query(event), Status::success);
  CHECK_EQUAL(machine.driver.destroy(event), Status::success);
  CHECK_EQUAL(machine.driver.query(event), Status::invalid_value);
}

TEST(simulated_driver_waits_for_an_event_a_stream_or_the_device) {
  Machine machine(4_MiB);
  machine.driver.costs().event = 0;
  machine.driver.launch(1, 1 * kMillisecond);
  const Event event = machine.record(1);
  machine.driver.launch(1, 1 * kMillisecond);
  machine.driver.launch(2, 5 * kMillisecond);
  CHECK_EQUAL(machine.driver.synchronize(event), Status::success);
  CHECK(is_about(machine.host.now_ns(), 1 * kMillisecond));
  CHECK_EQUAL(machine.driver.synchronize_stream(1), Status::success);
  CHECK(is_about(machine.host.now_ns(), 2 * kMillisecond));
  CHECK_EQUAL(machine.driver.synchronize_stream(3), Status::success);
  machine.driver.synchronize_device();
  CHECK(is_about(machine.host.now_ns(), 5 * kMillisecond));
  CHECK_EQUAL(machine.driver.now_us(), 5000);
}

TEST(simulated_driver_starts_work_no_earlier_than_now) {
  Machine machine(4_MiB);
  machine.host.advance(3 * kMillisecond);
  machine.driver.launch(1, kMillisecond);
  CHECK_EQUAL(machine.driver.synchronize_stream(1), Status::success);
  CHECK(is_about(machine.host.now_ns(), 4 * kMillisecond));
  machine.host.advance_to(kMillisecond);
  CHECK(is_about(machine.host.now_ns(), 4 * kMillisecond));
}

TEST(simulated_driver_lets_a_stream_wait_for_an_event) {
  Machine machine(4_MiB);
  machine.driver.launch(1, 2 * kMillisecond);
  const Event event = machine.record(1);
  CHECK_EQUAL(machine.driver.wait(2, event), Status::success);
  machine.driver.launch(2, 1 * kMillisecond);
  CHECK_EQUAL(machine.driver.synchronize_stream(2), Status::success);
  CHECK(is_about(machine.host.now_ns(), 3 * kMillisecond));
  CHECK_EQUAL(machine.driver.wait(3, event), Status::success);  // the event is complete by now
  CHECK_EQUAL(machine.driver.synchronize_stream(3), Status::success);
  CHECK(is_about(machine.host.now_ns(), 3 * kMillisecond));
}

TEST(simulated_driver_holds_a_stream_until_it_is_finished) {
  Machine machine(4_MiB);
  const Event before = machine.record(1);
  machine.driver.hold(1);
  const Event during = machine.record(1);
  machine.host.advance(1000 * kMillisecond);
  CHECK_EQUAL(machine.driver.query(before), Status::success);
  CHECK_EQUAL(machine.driver.query(during), Status::not_ready);
  machine.driver.finish(1);
  CHECK_EQUAL(machine.driver.query(during), Status::success);

  machine.driver.hold(1);
  const Event again = machine.record(1);
  CHECK_EQUAL(machine.driver.query(during), Status::success);
  CHECK_EQUAL(machine.driver.query(again), Status::not_ready);
}

TEST(simulated_driver_names_the_streams_of_which_an_event_may_be_complete) {
  Machine machine(4_MiB);
  const std::set<StreamId>& to_query = *machine.driver.streams_to_query();
  const Event of_second = machine.record(2);
  for (StreamId stream = 3; stream < 100; ++stream) {
    machine.driver.hold(stream);
    machine.record(stream);
  }
  CHECK(to_query == std::set<StreamId>{2});
  machine.driver.finish(5);
  CHECK(to_query == (std::set<StreamId>{2, 5}));
  machine.driver.hold(5);  // the event recorded before this hold is still complete
  CHECK(to_query == (std::set<StreamId>{2, 5}));
  CHECK_EQUAL(machine.driver.destroy(of_second), Status::success);
  CHECK(to_query == std::set<StreamId>{5});
}

TEST(simulated_driver_finishes_a_held_stream_when_somebody_waits_for_it) {
  Machine machine(4_MiB);
  machine.driver.hold(1);
  const Event of_first = machine.record(1);
  CHECK_EQUAL(machine.driver.synchronize(of_first), Status::success);
  CHECK_EQUAL(machine.driver.query(of_first), Status::success);
  machine.driver.hold(2);
  const Event of_second = machine.record(2);
  CHECK_EQUAL(machine.driver.synchronize_stream(2), Status::success);
  CHECK_EQUAL(machine.driver.query(of_second), Status::success);
}

TEST(simulated_driver_synchronizes_with_every_stream) {
  Machine machine(4_MiB);
  machine.driver.launch(1, kMillisecond);
  machine.driver.launch(2, 2 * kMillisecond);
  machine.driver.hold(3);
  const Event event = machine.record(3);
  CHECK_EQUAL(machine.driver.synchronize(), Status::success);
  CHECK(is_about(machine.host.now_ns(), 2 * kMillisecond));
  CHECK_EQUAL(machine.driver.query(event), Status::success);
}

TEST(simulated_driver_does_the_work_queued_before_a_hold_first) {
  Machine machine(4_MiB);
  machine.driver.launch(1, kMillisecond);
  machine.driver.hold(1);
  const Event event = machine.record(1);
  machine.driver.finish(1);
  CHECK_EQUAL(machine.driver.query(event), Status::not_ready);
  machine.host.advance(kMillisecond);
  CHECK_EQUAL(machine.driver.query(event), Status::success);
}

TEST(simulated_driver_waits_for_the_device_before_it_deallocates) {
  Machine machine(8_MiB);
  const Address large = machine.allocate(2_MiB);
  const Address small = machine.allocate(512);
  for (const Address address : {large, small}) {
    machine.driver.launch(1, kMillisecond);
    const Event event = machine.record(1);
    CHECK_EQUAL(machine.driver.query(event), Status::not_ready);
    CHECK_EQUAL(machine.driver.deallocate(address), Status::success);
    CHECK_EQUAL(machine.driver.query(event), Status::success);
  }
}

// --- prices ------------------------------------------------------------------------------------

TEST(simulated_driver_prices_grow_linearly_with_the_size) {
  const Price price{1000, 2000};
  CHECK(is_about(price.of(512), 1000));
  CHECK(is_about(price.of(2_MiB), 1000));
  CHECK(is_about(price.of(257_MiB), 1500));
  CHECK(is_about(price.of(512_MiB), 2000));
  CHECK(is_about(price.of(1022_MiB), 3000));
}

TEST(simulated_driver_adds_up_the_price_of_every_call) {
  Machine machine(2_GiB, 2_GiB);
  SimulatedDriver& driver = machine.driver;
  const CostModel& costs = driver.costs();
  double expected = 0;
  const auto charged = [&](double price) {
    expected += price;
    CHECK(is_about(driver.driver_seconds() * 1e9, expected));
    CHECK(is_about(machine.host.now_ns(), expected));
  };

  const Address large = machine.allocate(512_MiB);
  charged(costs.allocate.of(512_MiB));
  const Address small = machine.allocate(512);
  charged(costs.allocate.of(512));
  driver.deallocate(large);
  charged(costs.deallocate.of(512_MiB));
  driver.deallocate(small);
  charged(costs.deallocate.of(512));
  const Address range = machine.reserve(64_MiB);
  charged(costs.reserve);
  const Handle first = machine.create(32_MiB);
  charged(costs.create.of(32_MiB));
  const Handle second = machine.create(32_MiB, Tier::shared);
  charged(static_cast<double>(32_MiB) / costs.host_bytes_per_ns);
  machine.map(range, 32_MiB, first);
  charged(costs.map_per_handle);
  machine.map(range + 32_MiB, 32_MiB, second);
  charged(costs.map_per_handle);
  driver.set_access(range, 64_MiB);
  charged(2 * costs.set_access_per_handle);
  driver.unmap(range, 64_MiB);
  charged(2 * costs.unmap_per_handle);
  driver.release(first);
  charged(costs.release.of(32_MiB));
  driver.unreserve(range, 64_MiB);
  charged(costs.reserve);
  machine.record(1);
  charged(costs.event);
  Address pinned = 0;
  driver.allocate_host(1_MiB, pinned);
  charged(static_cast<double>(1_MiB) / costs.host_bytes_per_ns);
}

TEST(simulated_driver_charges_a_copy_to_its_stream_only) {
  Machine machine(128_MiB, 64_MiB);
  const CostModel& costs = machine.driver.costs();
  Address pinned = 0;
  CHECK_EQUAL(machine.driver.allocate_host(55_MiB, pinned), Status::success);
  const Address device = machine.allocate(64_MiB);
  const double begin = machine.host.now_ns();
  const double seconds = machine.driver.driver_seconds();
  CHECK_EQUAL(machine.driver.copy(device, pinned, 55_MiB, 1), Status::success);
  CHECK_EQUAL(machine.host.now_ns(), begin);
  CHECK_EQUAL(machine.driver.synchronize_stream(1), Status::success);
  const double over_the_bus = static_cast<double>(55_MiB) / costs.copy_bytes_per_ns;
  CHECK(is_about(machine.host.now_ns(), begin + over_the_bus));
  CHECK_EQUAL(machine.driver.copy(device, device + 32_MiB, 32_MiB, 1), Status::success);
  CHECK_EQUAL(machine.driver.synchronize(), Status::success);
  const double on_the_card = static_cast<double>(32_MiB) / costs.device_copy_bytes_per_ns;
  CHECK(is_about(machine.host.now_ns(), begin + over_the_bus + on_the_card));
  CHECK_EQUAL(machine.driver.driver_seconds(), seconds);
}

TEST(simulated_driver_on_windows_copies_each_part_at_the_speed_of_its_tier) {
  Machine machine(4_MiB, 4_MiB, DriverModel::wddm);
  const Address first = machine.allocate(2_MiB);
  const Address second = machine.allocate(4_MiB);  // half of it in shared memory
  const double begin = machine.host.now_ns();
  CHECK_EQUAL(machine.driver.copy(second + 1_MiB, first, 2_MiB, 1), Status::success);
  const CostModel& costs = machine.driver.costs();
  const auto mib = static_cast<double>(1_MiB);
  CHECK(is_about(machine.driver.done_at_ns(1) - begin,
                 mib / costs.device_copy_bytes_per_ns + mib / costs.copy_bytes_per_ns));
}

// --- content -------------------------------------------------------------------------------------

TEST(simulated_driver_brings_tags_to_the_host_and_back) {
  Machine machine(64_MiB, 64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address range = machine.reserve(4_MiB);
  const auto map_memory = [&] {
    for (const Bytes offset : {0_MiB, 2_MiB}) {
      const Handle handle = machine.create(2_MiB);
      machine.map(range + offset, 2_MiB, handle);
      CHECK_EQUAL(driver.release(handle), Status::success);
    }
    CHECK_EQUAL(driver.set_access(range, 4_MiB), Status::success);
  };
  map_memory();
  driver.write_tag(range + 1_MiB, 2_MiB, 7);
  driver.write_tag(range + 3_MiB, 512, 8);
  Address pinned = 0;
  CHECK_EQUAL(driver.allocate_host(4_MiB, pinned), Status::success);
  CHECK_EQUAL(driver.copy(pinned, range, 4_MiB, 1), Status::success);
  CHECK_EQUAL(driver.synchronize(), Status::success);
  CHECK_EQUAL(driver.unmap(range, 4_MiB), Status::success);
  CHECK_THROWS(driver.tag_at(range), std::logic_error);
  map_memory();
  CHECK_EQUAL(driver.tag_at(range + 1_MiB), 0U);  // new memory has tag 0
  CHECK_EQUAL(driver.copy(range, pinned, 4_MiB, 1), Status::success);
  CHECK_EQUAL(driver.tag_at(range + 1_MiB - 1), 0U);
  CHECK_EQUAL(driver.tag_at(range + 1_MiB), 7U);
  CHECK_EQUAL(driver.tag_at(range + 3_MiB - 1), 7U);
  CHECK_EQUAL(driver.tag_at(range + 3_MiB + 511), 8U);
  CHECK_EQUAL(driver.tag_at(range + 3_MiB + 512), 0U);
}

TEST(simulated_driver_keeps_tags_with_the_memory_wherever_it_is_mapped) {
  Machine machine(64_MiB, 64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address range = machine.reserve(4_MiB);
  const Handle handle = machine.create(2_MiB, Tier::shared);
  machine.map(range, 2_MiB, handle);
  machine.map(range + 2_MiB, 2_MiB, handle);
  CHECK_EQUAL(driver.set_access(range, 4_MiB), Status::success);
  driver.write_tag(range + 1_MiB, 16, 5);
  CHECK_EQUAL(driver.tag_at(range + 3_MiB), 5U);
  CHECK_EQUAL(driver.unmap(range, 2_MiB), Status::success);
  CHECK_EQUAL(driver.tag_at(range + 3_MiB), 5U);
}

TEST(simulated_driver_copies_whole_and_small_allocations_and_overlapping_ranges) {
  Machine machine(64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address large = machine.allocate(4_MiB);
  const Address small = machine.allocate(1536);
  driver.write_tag(small, 512, 1);
  driver.write_tag(small + 512, 512, 2);
  CHECK_EQUAL(driver.copy(small + 512, small, 1024, 1), Status::success);
  CHECK_EQUAL(driver.tag_at(small), 1U);
  CHECK_EQUAL(driver.tag_at(small + 512), 1U);
  CHECK_EQUAL(driver.tag_at(small + 1024), 2U);
  CHECK_EQUAL(driver.copy(large + 4_MiB - 1536, small, 1536, 1), Status::success);
  CHECK_EQUAL(driver.tag_at(large + 4_MiB - 1), 2U);
  CHECK_EQUAL(driver.deallocate(large), Status::success);
  CHECK_EQUAL(machine.allocate(4_MiB), large);
  CHECK_EQUAL(driver.tag_at(large + 4_MiB - 1), 0U);
}

TEST(simulated_driver_refuses_copies_where_no_memory_is) {
  Machine machine(64_MiB, 64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address source = machine.allocate(4_MiB);
  const Address range = machine.reserve(4_MiB);
  const auto copy_both_ways = [&](Address there, Bytes size) {
    const Status to = driver.copy(there, source, size, 1);
    CHECK_EQUAL(driver.copy(source, there, size, 1), to);
    return to;
  };
  driver.write_tag(source, 4_MiB, 3);
  CHECK_EQUAL(copy_both_ways(range, 512), Status::invalid_value);
  machine.map(range, 2_MiB, machine.create(2_MiB));
  CHECK_EQUAL(copy_both_ways(range, 512), Status::invalid_value);  // no access
  CHECK_EQUAL(driver.set_access(range, 2_MiB), Status::success);
  CHECK_EQUAL(copy_both_ways(range, 2_MiB + 1), Status::invalid_value);
  CHECK_EQUAL(driver.tag_at(range), 0U);  // nothing was copied
  CHECK_EQUAL(driver.done_at_ns(1), machine.host.now_ns());
  CHECK_EQUAL(copy_both_ways(range, 2_MiB), Status::success);
  CHECK_EQUAL(driver.synchronize(), Status::success);
  CHECK_EQUAL(driver.unmap(range, 2_MiB), Status::success);
  CHECK_EQUAL(copy_both_ways(range, 2_MiB), Status::invalid_value);

  Address first = 0;
  Address second = 0;
  CHECK_EQUAL(driver.allocate_host(1_MiB, first), Status::success);
  CHECK_EQUAL(driver.allocate_host(1_MiB, second), Status::success);
  CHECK_EQUAL(second, first + 1_MiB);
  CHECK_EQUAL(copy_both_ways(first + 512, 1_MiB), Status::invalid_value);  // spans two allocations
  CHECK_EQUAL(copy_both_ways(first, 1_MiB), Status::success);
}

TEST(simulated_driver_refuses_to_take_memory_away_while_it_is_copied) {
  Machine machine(64_MiB, 64_MiB);
  SimulatedDriver& driver = machine.driver;
  const Address range = machine.reserve(2_MiB);
  machine.map(range, 2_MiB, machine.create(2_MiB));
  CHECK_EQUAL(driver.set_access(range, 2_MiB), Status::success);
  Address pinned = 0;
  CHECK_EQUAL(driver.allocate_host(2_MiB, pinned), Status::success);
  driver.hold(1);
  CHECK_EQUAL(driver.copy(pinned, range, 1_MiB, 1), Status::success);
  machine.host.advance(kMillisecond);
  CHECK_EQUAL(driver.unmap(range, 2_MiB), Status::invalid_value);
  CHECK_EQUAL(driver.deallocate_host(pinned), Status::invalid_value);
  CHECK_EQUAL(driver.synchronize(), Status::success);
  CHECK_EQUAL(driver.unmap(range, 2_MiB), Status::success);
  CHECK_EQUAL(driver.deallocate_host(pinned), Status::success);
}

TEST(tags_are_like_an_array_of_them) {
  constexpr std::size_t kSize = 40;
  Random random(5);
  Content content;
  std::vector<std::uint64_t> model(kSize);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t begin = random.below(kSize);
    const std::size_t end = random.between(begin, kSize);
    const std::uint64_t tag = random.below(3);
    content.write(begin, end, tag);
    std::fill(model.begin() + static_cast<std::ptrdiff_t>(begin),
              model.begin() + static_cast<std::ptrdiff_t>(end), tag);
    for (std::size_t i = 0; i < kSize; ++i) {
      CHECK_EQUAL(content.at(i), model[i]);
      const Address same_until = content.end_of(i, kSize);
      CHECK(i < same_until && same_until <= kSize);
      CHECK(same_until == kSize || model[same_until] != model[i]);
      for (std::size_t j = i; j < same_until; ++j) CHECK_EQUAL(model[j], model[i]);
    }
  }
}

// --- fed addresses -----------------------------------------------------------------------------

TEST(simulated_driver_uses_fed_addresses_in_order_for_their_sizes) {
  constexpr Address kPlace = 0x7f12'3400'0000;
  Machine machine(64_MiB);
  machine.driver.feed_allocation(kPlace, 4_MiB);
  machine.driver.feed_allocation(kPlace + 32_MiB, 2_MiB);
  // This request has another size, so the fed addresses stay queued.
  const Address other = machine.allocate(8_MiB);
  CHECK(other != kPlace);
  CHECK_EQUAL(machine.allocate(4_MiB), kPlace);
  CHECK_EQUAL(machine.allocate(2_MiB), kPlace + 32_MiB);
  const Address unfed = machine.allocate(4_MiB);
  CHECK_EQUAL(machine.driver.deallocate(kPlace), Status::success);
  // The fed address is taken, so the driver chooses another address.
  machine.driver.feed_allocation(unfed, 4_MiB);
  CHECK(machine.allocate(4_MiB) != unfed);
  machine.driver.feed_allocation(kPlace, 4_MiB);
  machine.driver.forget_fed_addresses();
  CHECK(machine.allocate(4_MiB) != kPlace);
}

TEST(simulated_driver_uses_fed_reservations) {
  constexpr Address kPlace = 0x7f12'3400'0000;
  Machine machine(64_MiB);
  machine.driver.feed_reservation(kPlace);
  CHECK_EQUAL(machine.reserve(64_MiB), kPlace);
  CHECK(machine.reserve(64_MiB) != kPlace);
  CHECK_EQUAL(machine.driver.unreserve(kPlace, 64_MiB), Status::success);
}

TEST(simulated_driver_never_hands_out_an_address_twice) {
  constexpr Address kArea = 0x7f12'3400'0000;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    Machine machine(1_GiB);
    std::map<Address, Bytes> live;
    std::vector<Address> seen{kArea};
    for (int step = 0; step < 1000; ++step) {
      if (random.one_in(2) && !live.empty()) {
        const auto chosen =
            std::next(live.begin(), static_cast<std::ptrdiff_t>(random.below(live.size())));
        CHECK_EQUAL(machine.driver.deallocate(chosen->first), Status::success);
        live.erase(chosen);
        continue;
      }
      const Bytes size =
          random.one_in(3) ? random.between(1, 8) * 512 : random.between(1, 20) * kGranule;
      machine.driver.forget_fed_addresses();
      if (random.one_in(2)) {  // feeds an address near an earlier one
        const Address near = round_down(random.pick(seen), kGranule);
        machine.driver.feed_allocation(near + 16_MiB - random.below(16) * kGranule, size);
      }
      Address address = 0;
      if (machine.driver.allocate(size, address) != Status::success) continue;
      const auto next = live.lower_bound(address);
      CHECK(next == live.end() || address + size <= next->first);
      CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= address);
      live[address] = size;
      seen.push_back(address);
    }
  }
}

TEST(simulated_driver_scatters_allocations_over_two_areas_that_do_not_meet) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Machine machine(4_GiB);
    Address lowest = machine.allocate(32_MiB);
    machine.driver.scatter_allocations(seed);
    std::map<Address, Bytes> live{{lowest, 32_MiB}};
    int rises = 0;
    for (int step = 0; step < 60; ++step) {
      const Address address = machine.allocate(40_MiB);
      const auto next = live.lower_bound(address);
      CHECK(next == live.end() || address + 40_MiB <= next->first);
      CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= address);
      rises += address > lowest ? 1 : 0;
      lowest = address;
      live[address] = 40_MiB;
    }
    CHECK(rises > 5);
    for (const auto& [address, size] : live)
      CHECK_EQUAL(machine.driver.deallocate(address), Status::success);
  }
}

TEST(simulated_driver_feeds_no_address_that_is_mapped) {
  Machine machine(64_MiB);
  const Address range = machine.reserve(8_MiB);
  machine.map(range, 4_MiB, machine.create(4_MiB));
  machine.driver.feed_allocation(range + 2_MiB, 4_MiB);
  CHECK(machine.allocate(4_MiB) != range + 2_MiB);
  machine.driver.feed_allocation(range + 4_MiB, 4_MiB);
  CHECK_EQUAL(machine.allocate(4_MiB), range + 4_MiB);
  CHECK_EQUAL(machine.driver.deallocate(range + 4_MiB), Status::success);
}

}  // namespace plimsoll
