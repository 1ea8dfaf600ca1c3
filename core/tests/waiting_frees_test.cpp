// Tests frees that wait for CUDA events: when each free completes, and that the caller can try a
// free again after the driver failed to record an event.

#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/allocator.h"
#include "plimsoll/allocator/waiting_frees.h"
#include "plimsoll/simulated/driver.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr double kMillisecond = 1e6;

struct Frees {
  SimulatedHost host{0};
  SimulatedDriver driver{host, 1_GiB};
  std::vector<Block*> finished;
  WaitingFrees waiting{driver, [this](Block* block) { finished.push_back(block); }};
};

Block used_on(std::vector<StreamId> streams) {
  Block block;
  block.stream_uses = std::move(streams);
  return block;
}

}  // namespace

TEST(waiting_free_is_finished_once_after_the_last_of_its_events) {
  Frees frees;
  Block block = used_on({1, 2});
  frees.driver.launch(1, kMillisecond);
  frees.driver.launch(2, 2 * kMillisecond);
  frees.waiting.wait(&block);
  frees.host.advance(kMillisecond);
  frees.waiting.process_events();
  CHECK(frees.finished.empty());
  frees.host.advance(kMillisecond);
  frees.waiting.process_events();
  frees.waiting.process_events();
  CHECK(frees.finished == std::vector{&block});
  CHECK_EQUAL(frees.driver.events(), std::size_t{0});
}

TEST(waiting_free_leaves_no_event_where_one_cannot_be_recorded) {
  Frees frees;
  Block block = used_on({1, 2});
  frees.driver.inject({Call::record, 1, 1, Status::failed});
  CHECK_THROWS((frees.waiting.wait(&block), 0), DriverError);
  CHECK_EQUAL(frees.driver.events(), std::size_t{0});
  CHECK(frees.finished.empty());
  frees.waiting.wait(&block);
  frees.waiting.process_events();
  CHECK(frees.finished == std::vector{&block});
}

TEST(waiting_free_of_a_capture_waits_for_other_uses_alone_and_again_after_a_failure) {
  Frees frees;
  Block inside = used_on({1});
  Block both = used_on({1, 2});
  frees.waiting.use_in_capture(&inside, 1);
  frees.waiting.use_in_capture(&both, 1);
  frees.driver.launch(1, kMillisecond);
  frees.waiting.defer(&inside);
  frees.waiting.defer(&both);
  CHECK_EQUAL(frees.driver.calls(Call::record), std::uint64_t{0});
  frees.driver.inject({Call::record, 0, 1, Status::failed});
  CHECK_THROWS((frees.waiting.process_events(), 0), DriverError);
  CHECK(frees.finished == std::vector{&inside});
  frees.waiting.process_events();
  CHECK((frees.finished == std::vector{&inside, &both}));
  CHECK_EQUAL(frees.driver.events(), std::size_t{0});
}

TEST(waiting_frees_are_waited_for_where_they_are_meant) {
  Frees frees;
  Block one = used_on({1});
  Block other = used_on({1});
  frees.driver.launch(1, kMillisecond);
  frees.waiting.wait(&one);
  frees.waiting.wait(&other);
  frees.waiting.synchronize_events([&](const Block* block) { return block == &other; });
  CHECK(frees.finished == std::vector{&other});
}

}  // namespace plimsoll
