// Tests what an engine adds to its allocator. One kind of engine serves the threads of a process.
// The other kind runs on a simulated GPU that several users share.

#include "plimsoll/engine/engine.h"

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
#include "plimsoll/engine/process_engines.h"
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

// A simulated GPU and its host, for one engine. Engines are never destroyed, so no two engines may
// have the same device number or the same addresses.
struct Machine {
  Machine(Bytes dedicated, Bytes shared, int number)
      : device(number),
        host(shared),
        driver(host, dedicated, DriverModel::linux, static_cast<std::uint32_t>(number)) {}

  template <typename Wrapped = LockedDriver>
  Engine& engine(const std::string& allocator, bool account = true) {
    return ProcessEngines::add(std::make_unique<Engine>(
        std::make_unique<Wrapped>(driver),
        Engine::Options{allocator, "", TorchVersion::parse("2.11"), device, account}));
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

TEST(engine_obeys_the_lower_of_two_limits) {
  Engine& engine = machine(1_GiB).engine("elastic");
  engine.set_limit(64_MiB);  // the limit that the program sets
  engine.set_dedicated_limit(128_MiB);
  CHECK_THROWS(engine.allocate(100_MiB, kStream), OutOfMemory);
  engine.set_limit(std::nullopt);
  CHECK_EQUAL(*engine.limit(), Bytes{128_MiB});
  CHECK(engine.free(engine.allocate(100_MiB, kStream)));
  engine.set_dedicated_limit(std::nullopt);
  CHECK(!engine.limit());
}

TEST(engine_tells_of_the_first_spill_only) {
  Engine& engine = machine(64_MiB, 1_GiB).engine("elastic");
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

TEST(engine_keeps_the_account_of_the_whole_run) {
  Engine& engine = machine(1_GiB).engine("elastic");
  const Address first = engine.allocate(100_MiB, kStream);
  CHECK(engine.free(first));
  engine.empty_cache({});
  engine.reset_peak_statistics();
  engine.reset_accumulated_statistics();
  static_cast<void>(engine.allocate(1_MiB, kStream));
  CHECK_THROWS(engine.allocate(2_GiB, kStream), OutOfMemory);
  const Engine::Account account = engine.account();
  CHECK_EQUAL(account.peak_allocated, Bytes{100_MiB});
  CHECK_EQUAL(account.peak_reserved, Bytes{100_MiB});
  CHECK_EQUAL(*account.card_peak, Bytes{100_MiB});
  CHECK_EQUAL(account.card_total, Bytes{1_GiB});
  CHECK_EQUAL(account.num_ooms, std::int64_t{1});
  CHECK(account.num_device_alloc >= 2);
  CHECK_EQUAL(account.torch->peak_reserved, Bytes{100_MiB});
  CHECK_EQUAL(account.torch->stopped, std::string());
}

TEST(engine_without_an_account_says_what_the_allocator_knows) {
  Engine& engine = machine(1_GiB).engine("native", false);
  static_cast<void>(engine.allocate(30_MiB, kStream));
  const Engine::Account account = engine.account();
  CHECK_EQUAL(account.peak_allocated, Bytes{30_MiB});
  CHECK(!account.card_peak && !account.torch);
  CHECK_THROWS(static_cast<void>(engine.elastic()), std::invalid_argument);
}

TEST(engine_falls_back_where_the_driver_has_no_virtual_memory) {
  Engine& engine = machine(1_GiB).engine<OldDriver>("elastic");
  CHECK(engine.fell_back()->find("no virtual memory") != std::string::npos);
  const Address address = engine.allocate(3_MiB, kStream);
  // By PyTorch's rules, the segment of this block has 20 MiB.
  CHECK_EQUAL(engine.locate(address)->segment_size, Bytes{20_MiB});
  CHECK_THROWS(machine(1_GiB).engine("elastik"), std::invalid_argument);
}

TEST(engine_listens_until_told_otherwise) {
  Engine& engine = machine(1_GiB).engine("elastic", false);
  std::vector<Action> heard;
  engine.listen(std::make_unique<Actions>(heard));
  const Address address = engine.allocate(4_MiB, kStream);
  engine.listen(nullptr);
  CHECK(engine.free(address));
  CHECK(heard.front() == Action::segment_map);
  CHECK(heard.back() == Action::alloc);
}

TEST(engine_is_found_by_its_device_and_by_addresses) {
  Machine& gpus = machine(1_GiB);
  Engine& engine = gpus.engine("elastic");
  const Address address = engine.allocate(4_MiB, kStream);
  CHECK(ProcessEngines::owner_of(address) == &engine);
  CHECK(ProcessEngines::on(-1) == nullptr && ProcessEngines::on(64) == nullptr);
  bool is_there = false;
  ProcessEngines::for_each([&](Engine& each) { is_there = is_there || &each == &engine; });
  CHECK(is_there);
}

TEST(engine_on_a_simulated_gpu_meters_what_its_driver_spills) {
  SimulatedHost host(1_GiB);
  SimulatedDriver gpu(host, 64_MiB, DriverModel::wddm);
  Engine engine(gpu, {"native", "", TorchVersion::parse("2.11")});
  engine.hold()->history().record_up_to(100);
  const Address fits = engine.allocate(40_MiB, kStream, 7);
  const Address spilled = engine.allocate(40_MiB, kStream, 8);
  const History& history = engine.hold()->history();
  const TraceEvent& last = history[history.size() - 1];
  CHECK(last.action == Action::alloc && last.address == spilled && last.context == 8);
  CHECK_EQUAL(last.shared, Bytes{16_MiB});
  CHECK_EQUAL(engine.statistics().shared_allocated_bytes.current,
              static_cast<std::int64_t>(16_MiB));
  CHECK_EQUAL(engine.peak_dedicated(), Bytes{64_MiB});
  CHECK(engine.may_spill() && engine.excludes_calls());
  CHECK(!engine.free(fits + 512) && engine.free(fits) && engine.free(spilled));
  CHECK_EQUAL(engine.statistics().shared_allocated_bytes.current, std::int64_t{0});
}

TEST(engines_of_the_process_exclude_no_calls_and_meter_no_tiers) {
  Engine& engine = machine(1_GiB).engine("elastic", false);
  CHECK(!engine.excludes_calls() && !engine.exclude_calls().owns_lock());
  CHECK_THROWS(static_cast<void>(engine.peak_dedicated()), std::logic_error);
}

}  // namespace plimsoll
