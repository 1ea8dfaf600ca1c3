// Tests the buffer between the threads that allocate and the thread that records their events.

#include "plimsoll/events/event_buffer.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "check.h"

namespace plimsoll {
namespace {

TraceEvent numbered(Address number) { return {Action::alloc, number, 512, 0, {}, 0, 7, 0}; }

TEST(events_are_drained_in_order_and_once) {
  EventBuffer buffer(10);
  for (Address number = 0; number < 3; ++number) buffer.add(1, numbered(number));
  const auto& first = buffer.drain();
  CHECK_EQUAL(first.size(), 3u);
  for (Address number = 0; number < 3; ++number) {
    CHECK_EQUAL(first[number].event.address, number);
    CHECK_EQUAL(first[number].device, 1);
    CHECK_EQUAL(first[number].event.context, 7u);
  }
  CHECK(buffer.drain().empty());
  buffer.add(0, numbered(9));
  CHECK_EQUAL(buffer.drain().size(), 1u);
}

TEST(what_finds_no_room_is_counted) {
  EventBuffer buffer(4);
  for (Address number = 0; number < 7; ++number) buffer.add(0, numbered(number));
  CHECK_EQUAL(buffer.dropped(), 3u);
  CHECK_EQUAL(buffer.drain().size(), 4u);
  buffer.add(0, numbered(0));
  CHECK_EQUAL(buffer.drain().size(), 1u);
  CHECK_EQUAL(buffer.dropped(), 3u);
}

TEST(a_closed_buffer_drops_all) {
  EventBuffer buffer(4);
  buffer.add(0, numbered(1));
  buffer.close();
  buffer.add(0, numbered(2));
  CHECK(buffer.drain().empty());
  CHECK_EQUAL(buffer.dropped(), 1u);
}

TEST(nothing_is_lost_or_doubled_between_threads) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = 20'000;
  EventBuffer buffer(1000);
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&buffer, thread] {
      for (std::uint64_t number = 1; number <= kEach; ++number) {
        buffer.add(static_cast<std::int32_t>(thread), numbered(number));
      }
    });
  }
  std::vector<Address> newest(kThreads, 0);
  std::uint64_t drained = 0;
  const auto take = [&] {
    for (const DeviceEvent& entry : buffer.drain()) {
      auto& last = newest[static_cast<std::size_t>(entry.device)];
      CHECK(entry.event.address > last);  // each thread's events keep their order
      last = entry.event.address;
      ++drained;
    }
  };
  while (drained + buffer.dropped() < kThreads * kEach) take();
  for (std::thread& thread : threads) thread.join();
  take();
  CHECK_EQUAL(drained + buffer.dropped(), kThreads * kEach);
}

}  // namespace
}  // namespace plimsoll
