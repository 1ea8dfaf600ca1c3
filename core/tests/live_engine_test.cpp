// A live engine over a simulated driver: what it adds to the allocator that it holds.

#include "plimsoll/engine/live_engine.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "plimsoll/driver/locked.h"
#include "plimsoll/simulated/driver.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr StreamId kStream = 0;

class OldDriver final : public LockedDriver {
 public:
  using LockedDriver::LockedDriver;
  [[nodiscard]] bool has_virtual_memory() const override { return false; }
};

// Engines are never destroyed, so each has a device and addresses of its own.
struct Machine {
  Machine(Bytes dedicated, Bytes shared, int number)
      : device(number),
        host(shared),
        driver(host, dedicated, DriverModel::linux, static_cast<std::uint32_t>(number)) {}

  template <typename Wrapped = LockedDriver>
  LiveEngine& engine(const std::string& allocator, bool account = true) {
    return *new LiveEngine(
        std::make_unique<Wrapped>(driver), "simulated", [](int) { return Status::not_supported; },
        LiveEngine::Options{allocator, "", TorchVersion::parse("2.11"), device, account});
  }

  int device;
  SimulatedHost host;
  SimulatedDriver driver;
};

Machine& machine(Bytes dedicated, Bytes shared = 0) {
  static std::deque<Machine> machines;
  return machines.emplace_back(dedicated, shared, static_cast<int>(machines.size()));
}

class Actions final : public Observer {
 public:
  explicit Actions(std::vector<Action>& actions) : actions_(actions) {}
  void observe(const TraceEvent& event) override { actions_.push_back(event.action); }

 private:
  std::vector<Action>& actions_;
};

}  // namespace

TEST(live_engine_obeys_the_lower_of_two_limits) {
  LiveEngine& engine = machine(1_GiB).engine("elastic");
  engine.set_limit(64_MiB);  // the program's fraction
  engine.set_dedicated_limit(128_MiB);
  CHECK_THROWS(engine.allocate(100_MiB, kStream), OutOfMemory);
  engine.set_limit(std::nullopt);
  CHECK_EQUAL(*engine.limit(), Bytes{128_MiB});
  CHECK(engine.allocator().free(engine.allocate(100_MiB, kStream)));
  engine.set_dedicated_limit(std::nullopt);
  CHECK(!engine.limit());
}

TEST(live_engine_tells_of_the_first_spill_only) {
  LiveEngine& engine = machine(64_MiB, 1_GiB).engine("elastic");
  std::vector<Bytes> told;
  engine.elastic().set_spill_policy(SpillPolicy::spill);
  engine.spill_watch().set([&](Bytes size) { told.push_back(size); });
  CHECK_THROWS(engine.spill_watch().set([](Bytes) {}), std::invalid_argument);
  for (const Bytes size : {40_MiB, 50_MiB, 60_MiB}) {
    static_cast<void>(engine.allocate(size, kStream));
  }
  CHECK_EQUAL(told.size(), std::size_t{1});
  CHECK_EQUAL(told.front(), Bytes{50_MiB});
}

TEST(live_engine_keeps_the_account_of_the_whole_run) {
  LiveEngine& engine = machine(1_GiB).engine("elastic");
  const Address first = engine.allocate(100_MiB, kStream);
  CHECK(engine.allocator().free(first));
  engine.empty_cache({});
  engine.reset_peak_statistics();
  engine.reset_accumulated_statistics();
  static_cast<void>(engine.allocate(1_MiB, kStream));
  CHECK_THROWS(engine.allocate(2_GiB, kStream), OutOfMemory);
  const LiveEngine::Account account = engine.account();
  CHECK_EQUAL(account.peak_allocated, Bytes{100_MiB});
  CHECK_EQUAL(account.peak_reserved, Bytes{100_MiB});
  CHECK_EQUAL(*account.card_peak, Bytes{100_MiB});
  CHECK_EQUAL(account.card_total, Bytes{1_GiB});
  CHECK_EQUAL(account.num_ooms, std::int64_t{1});
  CHECK(account.num_device_alloc >= 2);
  CHECK_EQUAL(account.torch->peak_reserved, Bytes{100_MiB});
  CHECK_EQUAL(account.torch->stopped, std::string());
}

TEST(live_engine_without_an_account_says_what_the_allocator_knows) {
  LiveEngine& engine = machine(1_GiB).engine("native", false);
  static_cast<void>(engine.allocate(30_MiB, kStream));
  const LiveEngine::Account account = engine.account();
  CHECK_EQUAL(account.peak_allocated, Bytes{30_MiB});
  CHECK(!account.card_peak && !account.torch);
  CHECK_THROWS(static_cast<void>(engine.elastic()), std::invalid_argument);
}

TEST(live_engine_falls_back_where_the_driver_has_no_virtual_memory) {
  LiveEngine& engine = machine(1_GiB).engine<OldDriver>("elastic");
  CHECK(engine.fell_back()->find("no virtual memory") != std::string::npos);
  const Address address = engine.allocate(3_MiB, kStream);
  CHECK_EQUAL(engine.allocator().locate(address)->segment_size, Bytes{20_MiB});  // PyTorch's rules
  CHECK_THROWS(machine(1_GiB).engine("elastik"), std::invalid_argument);
}

TEST(live_engine_listens_until_told_otherwise) {
  LiveEngine& engine = machine(1_GiB).engine("elastic", false);
  std::vector<Action> heard;
  engine.listen(std::make_unique<Actions>(heard));
  const Address address = engine.allocate(4_MiB, kStream);
  engine.listen(nullptr);
  CHECK(engine.allocator().free(address));
  CHECK(heard.front() == Action::segment_map);
  CHECK(heard.back() == Action::alloc);
}

TEST(live_engine_is_found_by_its_device_and_by_addresses) {
  Machine& gpus = machine(1_GiB);
  LiveEngine& engine = gpus.engine("elastic");
  const Address address = engine.allocate(4_MiB, kStream);
  CHECK(LiveEngine::owner_of(address) == &engine);
  CHECK(LiveEngine::on(-1) == nullptr && LiveEngine::on(64) == nullptr);
  bool is_there = false;
  LiveEngine::for_each([&](LiveEngine& each) { is_there = is_there || &each == &engine; });
  CHECK(is_there);
}

}  // namespace plimsoll
