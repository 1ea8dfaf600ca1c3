#include "plimsoll/driver/cuda.h"

#include <dlfcn.h>

#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "check.h"
#include "fake_cuda.h"
#include "plimsoll/allocator/uncached.h"
#include "plimsoll/driver/cuda_errors.h"
#include "plimsoll/driver/host_memory.h"
#include "support.h"

namespace plimsoll {
namespace {

using cuda::Result;

constexpr Result kAssert = 710;
constexpr Result kUnknown = 999;

template <typename Function>
Function find_in_fake(const char* name) {
  void* const library = dlopen(FAKE_CUDA, RTLD_NOW);
  const auto function = reinterpret_cast<Function>(dlsym(library, name));
  dlclose(library);  // cuda::Api keeps it loaded
  return function;
}

// The fake driver's machine; each test makes it anew.
struct Machine {
  Machine() : api(cuda::Api::load(FAKE_CUDA)) {
    std::destroy_at(&fake);
    std::construct_at(&fake);
    thread = FakeThread{};
  }
  ~Machine() { thread = FakeThread{}; }
  void fail(const std::string& entry, Result result, int nth = 1) {
    fake.faults[entry] = {fake.calls[entry] + nth, result};
  }
  [[nodiscard]] std::unique_ptr<CudaDriver> start(int device = 0) const {
    return std::make_unique<CudaDriver>(device, api);
  }

  cuda::Api api;
  FakeCuda& fake = *find_in_fake<FakeCuda* (*)()>("fake_cuda")();
  FakeThread& thread = *find_in_fake<FakeThread* (*)()>("fake_cuda_thread")();
};

// Reserves a range, maps `count` accessible granules in it, `stride` bytes apart, and releases the
// granules' handles.
Address map_granules(CudaDriver& driver, std::size_t count, Bytes stride = kGranule) {
  Address address = 0;
  CHECK_EQUAL(driver.reserve(count * stride, address), Status::success);
  for (std::size_t i = 0; i < count; ++i) {
    Handle handle = 0;
    CHECK_EQUAL(driver.create(kGranule, Tier::dedicated, handle), Status::success);
    CHECK_EQUAL(driver.map(address + i * stride, kGranule, handle), Status::success);
    CHECK_EQUAL(driver.release(handle), Status::success);
    CHECK_EQUAL(driver.set_access(address + i * stride, kGranule), Status::success);
  }
  return address;
}

}  // namespace

// --- starting ----------------------------------------------------------------------------------

TEST(cuda_names_a_missing_driver) {
  const std::string message =
      message_of<cuda::Unavailable>([] { CudaDriver(0, "libno_such_driver.so.1"); });
  CHECK(message.starts_with("no NVIDIA driver is installed: libno_such_driver.so.1: "));
  CHECK(!contains(message, "\n"));
}

TEST(cuda_names_a_missing_entry_point) {
  CHECK_EQUAL(message_of<cuda::Unavailable>([] { CudaDriver(0, "libm.so.6"); }),
              "the NVIDIA driver cannot be used: libm.so.6 has no cuInit");
}

TEST(cuda_says_why_the_driver_does_not_start) {
  Machine machine;
  machine.fail("cuInit", 803);
  const std::string message = message_of<cuda::Unavailable>([&] { return machine.start(); });
  CHECK(
      message.starts_with("the NVIDIA driver does not start: cuInit failed: "
                          "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): the kernel module"));
}

TEST(cuda_says_which_devices_there_are) {
  Machine machine;
  CHECK_EQUAL(message_of<cuda::Unavailable>([&] { return machine.start(2); }),
              "there is no GPU 2: the driver shows 2 GPUs, numbers 0 to 1 (CUDA_VISIBLE_DEVICES "
              "selects which)");
  machine.fake.devices = 1;
  CHECK(contains(message_of<cuda::Unavailable>([&] { return machine.start(-1); }),
                 "1 GPU, number 0"));
}

TEST(cuda_retains_the_primary_context_and_gives_it_back) {
  Machine machine;
  {
    const auto driver = machine.start();
    CHECK_EQUAL(machine.fake.retained[0], 1);
  }
  CHECK_EQUAL(machine.fake.retained[0], 0);
}

TEST(cuda_of_an_old_driver_has_no_virtual_memory) {
  const CudaDriver old(0, FAKE_CUDA_OLD);
  CHECK(!old.has_virtual_memory());
}

TEST(cuda_has_virtual_memory_only_if_the_device_has_it_in_granules) {
  Machine machine;
  CHECK(machine.start()->has_virtual_memory());
  machine.fake.granularity = 16 * kMiB;
  CHECK(!machine.start()->has_virtual_memory());
  machine.fake.granularity = 64 * kKiB;
  CHECK(machine.start()->has_virtual_memory());
  machine.fake.attributes[cuda::Attribute::virtual_memory] = 0;
  const auto driver = machine.start();
  Address address = 7;
  CHECK(!driver->has_virtual_memory());
  CHECK_EQUAL(driver->reserve(kGranule, address), Status::not_supported);
  CHECK_EQUAL(address, 7U);
  CHECK(contains(driver->last_error(), "no virtual memory management"));
}

// --- contexts and captures ---------------------------------------------------------------------

TEST(cuda_leaves_the_current_context_as_it_was) {
  Machine machine;
  const auto driver = machine.start();
  const auto other = reinterpret_cast<cuda::Context>(0x77);
  for (const std::vector<cuda::Context>& contexts :
       {std::vector<cuda::Context>{}, std::vector<cuda::Context>{other}}) {
    machine.thread.contexts = contexts;
    Address address = 0;
    CHECK_EQUAL(driver->allocate(1_MiB, address), Status::success);
    CHECK_EQUAL(driver->deallocate(address), Status::success);
    CHECK(driver->memory_info().total == 1_GiB);
    CHECK(machine.thread.contexts == contexts);
  }
}

TEST(cuda_pushes_no_context_that_is_current_already) {
  Machine machine;
  const auto driver = machine.start();
  cuda::Context primary = nullptr;
  machine.api.primary_context_retain(&primary, 0);
  machine.api.context_push(primary);
  machine.fake.calls.clear();
  CHECK(driver->memory_info().total == 1_GiB);
  CHECK_EQUAL(machine.fake.calls["cuCtxPushCurrent_v2"], 0);
  CHECK_EQUAL(machine.thread.contexts.size(), 1U);
}

TEST(cuda_works_beside_a_capture_and_does_not_break_it) {
  Machine machine;
  const auto driver = machine.start();
  machine.fake.capturing = true;
  machine.fake.captured = reinterpret_cast<cuda::Stream>(0x5);
  machine.thread.capture_mode = 1;
  Address address = 0;
  Event event = 0;
  CHECK_EQUAL(driver->allocate(1_MiB, address), Status::success);
  CHECK_EQUAL(driver->deallocate(address), Status::success);
  CHECK_EQUAL(driver->record(0, event), Status::success);
  CHECK_EQUAL(driver->query(event), Status::success);
  CHECK_EQUAL(driver->synchronize(event), Status::success);
  CHECK_EQUAL(driver->synchronize_stream(0), Status::success);
  CHECK_EQUAL(driver->copy(0x2000, 0x1000, 512, 0), Status::success);
  CHECK_EQUAL(driver->allocate_host(1_MiB, address), Status::success);
  CHECK_EQUAL(driver->deallocate_host(address), Status::success);
  const Address mapped = map_granules(*driver, 2);
  CHECK_EQUAL(driver->unmap(mapped, 2 * kGranule), Status::success);
  CHECK_EQUAL(driver->record(5, event), Status::not_permitted);
  CHECK_EQUAL(driver->synchronize_stream(5), Status::not_permitted);
  CHECK(contains(driver->last_error(), "while a CUDA graph is captured"));
  CHECK(!machine.fake.capture_broken);
  CHECK_EQUAL(machine.thread.capture_mode, 1);
}

// --- memory ------------------------------------------------------------------------------------

TEST(cuda_asks_for_device_memory_that_can_be_shared_and_reached_by_rdma) {
  Machine machine;
  const auto driver = machine.start();
  Handle handle = 0;
  CHECK_EQUAL(driver->create(3 * kGranule, Tier::dedicated, handle), Status::success);
  const FakeCuda::Memory& memory = machine.fake.handles.at(handle);
  CHECK_EQUAL(memory.size, 3 * kGranule);
  CHECK(memory.properties.location.type == cuda::LocationType::device);
  CHECK_EQUAL(memory.properties.location.id, 0);
  CHECK_EQUAL(memory.properties.handle_types, cuda::kPosixFileDescriptor);
  CHECK_EQUAL(int{memory.properties.gpu_direct_rdma}, 1);

  machine.fake.attributes[cuda::Attribute::posix_handles] = 0;
  machine.fake.attributes.erase(cuda::Attribute::gpu_direct_rdma_with_virtual_memory);
  CHECK_EQUAL(machine.start()->create(kGranule, Tier::dedicated, handle), Status::success);
  CHECK_EQUAL(machine.fake.handles.at(handle).properties.handle_types, 0);
  CHECK_EQUAL(int{machine.fake.handles.at(handle).properties.gpu_direct_rdma}, 0);
}

TEST(cuda_places_shared_memory_on_the_numa_node_of_the_gpu_or_anywhere) {
  Machine machine;
  Handle handle = 0;
  auto driver = machine.start();
  const auto location = [&] { return machine.fake.handles.at(handle).properties.location; };
  CHECK_EQUAL(driver->create(kGranule, Tier::shared, handle), Status::success);
  CHECK(location().type == cuda::LocationType::host_numa);
  CHECK_EQUAL(location().id, 1);

  machine.fail("cuMemCreate", 800);
  CHECK_EQUAL(driver->create(kGranule, Tier::shared, handle), Status::success);
  CHECK(location().type == cuda::LocationType::host);

  machine.fake.attributes[cuda::Attribute::host_numa_id] = -1;
  CHECK_EQUAL(machine.start()->create(kGranule, Tier::shared, handle), Status::success);
  CHECK_EQUAL(location().id, 0);

  machine.fake.attributes[cuda::Attribute::host_numa_virtual_memory] = 0;
  machine.fake.attributes[cuda::Attribute::host_virtual_memory] = 0;
  driver = machine.start();
  CHECK_EQUAL(driver->create(kGranule, Tier::shared, handle), Status::not_supported);
  CHECK(driver->last_error().starts_with(
      "cuMemCreate of 2.00 MiB of host memory failed: CUDA_ERROR_NOT_SUPPORTED (801)"));
}

TEST(cuda_says_how_much_memory_is_free_when_there_is_too_little) {
  Machine machine;
  const auto driver = machine.start();
  Address address = 0;
  CHECK_EQUAL(driver->allocate(1000_MiB, address), Status::success);
  Handle handle = 9;
  CHECK_EQUAL(driver->create(32_MiB, Tier::dedicated, handle), Status::out_of_memory);
  CHECK_EQUAL(handle, 9U);
  CHECK_EQUAL(driver->last_error(),
              "cuMemCreate of 32.00 MiB failed: CUDA_ERROR_OUT_OF_MEMORY (2): there is not enough "
              "memory left; 24.00 MiB of 1024.00 MiB are free on the card");
  CHECK_EQUAL(driver->deallocate(address), Status::success);
  CHECK_EQUAL(driver->allocate(2_GiB, address), Status::out_of_memory);
  CHECK(driver->last_error().starts_with("cuMemAlloc of 2.00 GiB failed: "));
}

TEST(cuda_gives_access_to_several_handles_at_once) {
  Machine machine;
  const auto driver = machine.start();
  Address address = 0;
  CHECK_EQUAL(driver->reserve(2 * kGranule, address), Status::success);
  Handle handle = 0;
  CHECK_EQUAL(driver->create(kGranule, Tier::dedicated, handle), Status::success);
  CHECK_EQUAL(driver->map(address, kGranule, handle), Status::success);
  CHECK_EQUAL(driver->map(address + kGranule, kGranule, handle), Status::success);
  CHECK_EQUAL(driver->set_access(address, 2 * kGranule), Status::success);
  CHECK_EQUAL(machine.fake.calls["cuMemSetAccess"], 1);
  for (const auto& [place, mapping] : machine.fake.mappings) {
    CHECK(mapping.accessors == std::set<int>{0});
  }
}

TEST(cuda_unmaps_what_lies_wholly_in_a_range) {
  Machine machine;
  const auto driver = machine.start();
  const Address address = map_granules(*driver, 4);
  Handle large = 0;
  Address other = 0;
  CHECK_EQUAL(driver->create(2 * kGranule, Tier::dedicated, large), Status::success);
  CHECK_EQUAL(driver->reserve(4 * kGranule, other), Status::success);
  CHECK_EQUAL(driver->map(other + kGranule, 2 * kGranule, large), Status::success);

  CHECK_EQUAL(driver->unmap(other, 2 * kGranule), Status::invalid_value);
  CHECK(contains(driver->last_error(), "a mapping lies partly in 4.00 MiB at 0x"));
  CHECK_EQUAL(driver->unmap(other + 2 * kGranule, 2 * kGranule), Status::invalid_value);
  CHECK_EQUAL(driver->unmap(other, kGranule), Status::invalid_value);
  CHECK_EQUAL(driver->unmap(other, kGranule + 512), Status::invalid_value);
  CHECK_EQUAL(driver->unreserve(other, 4 * kGranule), Status::invalid_value);
  CHECK_EQUAL(driver->unmap(other, 4 * kGranule), Status::success);
  CHECK_EQUAL(driver->unreserve(other, 4 * kGranule), Status::success);

  CHECK_EQUAL(driver->unmap(address, 4 * kGranule), Status::success);
  CHECK_EQUAL(machine.fake.calls["cuMemUnmap"], 2);
  CHECK_EQUAL(machine.fake.handles.size(), 1U);  // `large` was never released
}

TEST(cuda_unmaps_a_range_with_holes_wholly_or_not_at_all) {
  Machine machine;
  const auto driver = machine.start();
  const Address address = map_granules(*driver, 3, 2 * kGranule);
  const std::string before = machine.fake.state();
  machine.fail("cuMemUnmap", kUnknown, 3);
  CHECK_EQUAL(driver->unmap(address, 6 * kGranule), Status::failed);
  CHECK_EQUAL(machine.fake.state(), before);
  CHECK_EQUAL(driver->unmap(address, 6 * kGranule), Status::success);
  CHECK(machine.fake.mappings.empty());
  CHECK(machine.fake.handles.empty());
}

TEST(cuda_exports_and_imports_handles) {
  Machine machine;
  const auto driver = machine.start();
  Handle handle = 0;
  Handle imported = 0;
  int descriptor = -1;
  CHECK_EQUAL(driver->create(kGranule, Tier::dedicated, handle), Status::success);
  CHECK_EQUAL(driver->export_handle(handle, descriptor), Status::success);
  CHECK_EQUAL(driver->import_handle(descriptor, imported), Status::success);
  CHECK_EQUAL(machine.fake.handles.at(handle).references, 2);
  CHECK_EQUAL(driver->release(handle), Status::success);
  CHECK_EQUAL(driver->release(imported), Status::success);
  CHECK(machine.fake.handles.empty());
  CHECK_EQUAL(driver->import_handle(descriptor + 1, imported), Status::invalid_value);
}

// --- host memory -------------------------------------------------------------------------------

TEST(cuda_allocates_host_memory_that_every_gpu_reaches) {
  Machine machine;
  const auto driver = machine.start();
  Address address = 9;
  machine.fail("cuMemHostAlloc", cuda::kOutOfMemory);
  CHECK_EQUAL(driver->allocate_host(3_MiB, address), Status::out_of_memory);
  CHECK_EQUAL(address, 9U);
  CHECK(driver->last_error().starts_with("cuMemHostAlloc of 3.00 MiB failed: "));
  CHECK_EQUAL(driver->allocate_host(3_MiB, address), Status::success);
  CHECK_EQUAL(machine.fake.host_allocations.at(address), 3_MiB);
  CHECK_EQUAL(driver->deallocate_host(address), Status::success);
  CHECK(machine.fake.host_allocations.empty());
  CHECK_EQUAL(driver->deallocate_host(address), Status::invalid_value);
}

TEST(cuda_copies_on_a_stream) {
  Machine machine;
  const auto driver = machine.start();
  CHECK_EQUAL(driver->copy(0x3000, 0x1000, 512, 7), Status::success);
  const FakeCuda::Copy& copy = machine.fake.copies.at(0);
  CHECK_EQUAL(copy.to, 0x3000U);
  CHECK_EQUAL(copy.from, 0x1000U);
  CHECK_EQUAL(copy.size, 512U);
  CHECK(copy.stream == reinterpret_cast<cuda::Stream>(7));
  machine.fail("cuMemcpyAsync", cuda::kInvalidValue);
  CHECK_EQUAL(driver->copy(0x3000, 0x1000, 512, 7), Status::invalid_value);
  CHECK(contains(driver->last_error(), " at 0x1000 to 0x3000 failed: "));
}

TEST(cuda_offers_half_of_the_host_less_what_it_has_locked) {
  Machine machine;
  const auto driver = machine.start();
  const Bytes total = driver->shared_info().total;
  CHECK_EQUAL(total, host_memory().total / 2);
  CHECK(driver->shared_info().free <= total);

  // The host does not count the fake driver's memory, so only the driver's own count matters.
  const Bytes most = round_down(total, kGranule);
  Address pinned = 0;
  CHECK_EQUAL(driver->allocate_host(total - most + kGranule, pinned), Status::success);
  Address range = 0;
  Handle handle = 0;
  CHECK_EQUAL(driver->reserve(most, range), Status::success);
  CHECK_EQUAL(driver->create(most - kGranule, Tier::shared, handle), Status::success);
  CHECK_EQUAL(driver->shared_info().free, 0U);
  CHECK_EQUAL(driver->map(range, most - kGranule, handle), Status::success);
  CHECK_EQUAL(driver->release(handle), Status::success);
  CHECK_EQUAL(driver->shared_info().free, 0U);
  CHECK_EQUAL(driver->unmap(range, most - kGranule), Status::success);
  CHECK(driver->shared_info().free > 0);
  CHECK_EQUAL(driver->create(most - kGranule, Tier::shared, handle), Status::success);
  CHECK_EQUAL(driver->shared_info().free, 0U);
  CHECK_EQUAL(driver->deallocate_host(pinned), Status::success);
  CHECK(driver->shared_info().free > 0);
  CHECK_EQUAL(driver->release(handle), Status::success);
}

// --- peers -------------------------------------------------------------------------------------

TEST(cuda_lets_a_peer_reach_what_is_mapped_and_what_will_be) {
  Machine machine;
  const auto driver = machine.start();
  map_granules(*driver, 2);
  CHECK_EQUAL(driver->enable_peer(1), Status::success);
  map_granules(*driver, 1);
  for (const auto& [address, mapping] : machine.fake.mappings) {
    CHECK(mapping.accessors == (std::set<int>{0, 1}));
  }
  const int calls = machine.fake.calls["cuMemSetAccess"];
  CHECK_EQUAL(calls, 4);  // one for each of 3 granules, and one by `enable_peer`
  CHECK_EQUAL(driver->enable_peer(1), Status::success);
  CHECK_EQUAL(driver->enable_peer(0), Status::success);
  CHECK_EQUAL(machine.fake.calls["cuMemSetAccess"], calls);
}

TEST(cuda_refuses_peers_that_cannot_reach_it) {
  Machine machine;
  machine.fake.peers_reach = false;
  const auto driver = machine.start();
  CHECK_EQUAL(driver->enable_peer(1), Status::not_permitted);
  CHECK(driver->last_error().starts_with("GPU 1 cannot reach the memory of GPU 0: "));
  CHECK_EQUAL(driver->enable_peer(5), Status::invalid_value);
  CHECK(contains(driver->last_error(), "GPU 5: cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"));
}

TEST(cuda_gives_a_peer_all_or_nothing) {
  Machine machine;
  const auto driver = machine.start();
  map_granules(*driver, 3, 2 * kGranule);
  const std::string before = machine.fake.state();
  machine.fail("cuMemSetAccess", 711, 2);
  CHECK_EQUAL(driver->enable_peer(1), Status::not_permitted);
  CHECK_EQUAL(machine.fake.state(), before);
  CHECK_EQUAL(driver->enable_peer(1), Status::success);
}

TEST(cuda_takes_back_access_when_some_device_is_refused) {
  Machine machine;
  const auto driver = machine.start();
  const Address address = map_granules(*driver, 2);
  CHECK_EQUAL(driver->enable_peer(1), Status::success);
  CHECK_EQUAL(driver->unmap(address + kGranule, kGranule), Status::success);
  Handle handle = 0;
  CHECK_EQUAL(driver->create(kGranule, Tier::dedicated, handle), Status::success);
  CHECK_EQUAL(driver->map(address + kGranule, kGranule, handle), Status::success);
  const std::string before = machine.fake.state();
  machine.fail("cuMemSetAccess", 217);
  CHECK_EQUAL(driver->set_access(address, 2 * kGranule), Status::not_permitted);
  CHECK_EQUAL(machine.fake.state(), before);  // the first granule stays accessible
  CHECK_EQUAL(driver->set_access(address, 2 * kGranule), Status::success);
}

// --- events and streams ------------------------------------------------------------------------

TEST(cuda_uses_events_again) {
  Machine machine;
  const auto driver = machine.start();
  Event first = 0;
  Event second = 0;
  CHECK_EQUAL(driver->record(5, first), Status::success);
  CHECK_EQUAL(driver->record(6, second), Status::success);
  CHECK(first != second);
  CHECK_EQUAL(machine.fake.event_flags, cuda::kEventDisableTiming);
  for (int round = 0; round < 10; ++round) {
    CHECK_EQUAL(driver->destroy(first), Status::success);
    CHECK_EQUAL(driver->record(7, first), Status::success);
  }
  CHECK_EQUAL(machine.fake.events.size(), 2U);
  CHECK_EQUAL(machine.fake.calls["cuEventCreate"], 2);
  CHECK(machine.fake.recorded_on.front() == reinterpret_cast<cuda::Stream>(5));
  machine.fail("cuEventRecord", kUnknown);
  Event none = 3;
  CHECK_EQUAL(driver->record(5, none), Status::failed);
  CHECK_EQUAL(none, 3U);
  CHECK_EQUAL(driver->record(5, none), Status::success);
  CHECK_EQUAL(machine.fake.events.size(), 3U);
}

TEST(cuda_tells_what_an_event_has_reached) {
  Machine machine;
  const auto driver = machine.start();
  Event event = 0;
  CHECK_EQUAL(driver->record(0, event), Status::success);
  machine.fake.events_complete = false;
  CHECK_EQUAL(driver->query(event), Status::not_ready);
  machine.fake.events_complete = true;
  CHECK_EQUAL(driver->query(event), Status::success);
  CHECK_EQUAL(driver->wait(9, event), Status::success);
  CHECK(machine.fake.waited_on == std::vector{reinterpret_cast<cuda::Stream>(9)});
}

TEST(cuda_refuses_events_that_it_did_not_lend) {
  Machine machine;
  const auto driver = machine.start();
  Event event = 0;
  CHECK_EQUAL(driver->record(0, event), Status::success);
  CHECK_EQUAL(driver->destroy(event), Status::success);
  CHECK_EQUAL(driver->destroy(event), Status::invalid_value);
  CHECK_EQUAL(driver->query(event), Status::invalid_value);
  CHECK_EQUAL(driver->synchronize(event), Status::invalid_value);
  CHECK_EQUAL(driver->wait(0, event), Status::invalid_value);
}

TEST(cuda_destroys_its_events_with_itself) {
  Machine machine;
  {
    const auto driver = machine.start();
    Event event = 0;
    CHECK_EQUAL(driver->record(0, event), Status::success);
    CHECK_EQUAL(driver->record(0, event), Status::success);
    CHECK_EQUAL(driver->destroy(event), Status::success);
  }
  CHECK(machine.fake.events.empty());
}

TEST(cuda_reads_the_wall_clock) {
  Machine machine;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::int64_t told = machine.start()->now_us() / 1'000'000;
  CHECK(told - seconds >= 0 && told - seconds <= 1);
}

// --- errors ------------------------------------------------------------------------------------

TEST(cuda_explains_every_error) {
  const Machine machine;
  int previous = 0;
  std::set<std::string_view> names;
  std::set<std::string_view> meanings;
  for (const cuda::Error& error : cuda::errors()) {
    CHECK(error.code > previous);
    CHECK(error.name.starts_with("CUDA_ERROR_"));
    CHECK(error.meaning.size() > 10 && !error.meaning.ends_with('.'));
    CHECK(error.status != Status::success);
    CHECK(names.insert(error.name).second && meanings.insert(error.meaning).second);
    CHECK_EQUAL(cuda::status_of(error.code), error.status);
    CHECK_EQUAL(cuda::explain(machine.api, error.code), std::string(error.name) + " (" +
                                                            std::to_string(error.code) +
                                                            "): " + std::string(error.meaning));
    if (error.status == Status::device_lost) CHECK(contains(std::string(error.meaning), "restart"));
    previous = error.code;
  }
  CHECK_EQUAL(cuda::errors().size(), 100U);
  CHECK_EQUAL(cuda::status_of(cuda::kSuccess), Status::success);
}

TEST(cuda_explains_an_error_that_it_does_not_know_in_the_words_of_the_driver) {
  const Machine machine;
  CHECK_EQUAL(cuda::explain(machine.api, 12345),
              "CUDA_ERROR_OF_TOMORROW (12345): not invented yet");
  CHECK_EQUAL(cuda::explain(machine.api, 54321), "unknown error (54321)");
  CHECK_EQUAL(cuda::status_of(54321), Status::failed);
}

TEST(cuda_tells_a_lost_device_from_a_failed_call) {
  Machine machine;
  const auto driver = machine.start();
  machine.fail("cuMemAlloc_v2", kAssert);
  Address address = 0;
  CHECK_EQUAL(driver->allocate(1_MiB, address), Status::device_lost);
  CHECK(contains(driver->last_error(), "restart the process"));
}

TEST(cuda_gives_back_quietly_when_the_driver_is_gone) {
  Machine machine;
  auto driver = machine.start();
  const Address mapped = map_granules(*driver, 2);
  Address address = 0;
  Address pinned = 0;
  Event event = 0;
  Handle handle = 0;
  CHECK_EQUAL(driver->allocate(1_MiB, address), Status::success);
  CHECK_EQUAL(driver->allocate_host(1_MiB, pinned), Status::success);
  CHECK_EQUAL(driver->create(kGranule, Tier::dedicated, handle), Status::success);
  CHECK_EQUAL(driver->record(0, event), Status::success);
  machine.fake.gone = cuda::kDeinitialized;
  const std::string quiet = driver->last_error();
  CHECK_EQUAL(driver->deallocate(address), Status::success);
  CHECK_EQUAL(driver->deallocate_host(pinned), Status::success);
  CHECK_EQUAL(driver->synchronize_stream(0), Status::success);
  CHECK_EQUAL(driver->synchronize(), Status::success);
  CHECK_EQUAL(driver->synchronize(event), Status::success);
  CHECK_EQUAL(driver->query(event), Status::success);
  CHECK_EQUAL(driver->destroy(event), Status::success);
  CHECK_EQUAL(driver->unmap(mapped, 2 * kGranule), Status::success);
  CHECK_EQUAL(driver->release(handle), Status::success);
  CHECK_EQUAL(driver->unreserve(mapped, 2 * kGranule), Status::success);
  CHECK_EQUAL(driver->last_error(), quiet);
  CHECK_EQUAL(driver->memory_info().total, 0U);
  CHECK_EQUAL(driver->allocate(1_MiB, address), Status::driver_gone);
  driver.reset();
}

TEST(cuda_keeps_the_last_error_of_each_thread) {
  Machine machine;
  const auto driver = machine.start();
  CHECK_EQUAL(driver->deallocate(0x1234), Status::invalid_value);
  const std::string error = driver->last_error();
  CHECK(error.starts_with("cuMemFree at 0x1234 failed: CUDA_ERROR_INVALID_VALUE (1): "));
  std::string other;
  std::thread([&] { other = driver->last_error(); }).join();
  CHECK_EQUAL(other, "");
  CHECK_EQUAL(driver->last_error(), error);
}

TEST(cuda_errors_are_told_by_the_allocator) {
  Machine machine;
  const auto driver = machine.start();
  UncachedAllocator allocator(*driver);
  machine.fail("cuMemAlloc_v2", kAssert);
  const std::string message = message_of<DriverError>([&] { allocator.malloc(32_MiB, 0); });
  CHECK(
      message.starts_with("the driver failed to allocate memory: cuMemAlloc of 32.00 MiB failed: "
                          "CUDA_ERROR_ASSERT (710): an assertion in a kernel failed"));
}

// --- each driver call is made to fail in turn --------------------------------------------------

namespace {

// Uses every part of a driver and frees everything. Checks that a refused call has changed nothing,
// and repeats a refused free, which must then succeed.
void use_everything(Machine& machine) {
  const auto unchanged = [&](const std::function<Status()>& call) {
    const std::string before = machine.fake.state();
    const Status status = call();
    if (status != Status::success) CHECK_EQUAL(machine.fake.state(), before);
    return status == Status::success;
  };
  const auto insist = [&](const std::function<Status()>& call) {
    if (!unchanged(call)) CHECK_EQUAL(call(), Status::success);
  };
  std::unique_ptr<CudaDriver> driver;
  try {
    driver = machine.start();
  } catch (const cuda::Unavailable&) {
    return;
  }
  Address address = 0;
  if (unchanged([&] { return driver->allocate(1_MiB, address); })) {
    insist([&] { return driver->deallocate(address); });
  }
  Event event = 0;
  if (unchanged([&] { return driver->record(3, event); })) {
    unchanged([&] { return driver->query(event); });
    unchanged([&] { return driver->wait(4, event); });
    unchanged([&] { return driver->synchronize(event); });
    insist([&] { return driver->destroy(event); });
  }
  unchanged([&] { return driver->synchronize_stream(3); });
  unchanged([&] { return driver->synchronize(); });
  static_cast<void>(driver->memory_info());
  if (unchanged([&] { return driver->allocate_host(1_MiB, address); })) {
    unchanged([&] { return driver->copy(address, address + 512, 512, 3); });
    insist([&] { return driver->deallocate_host(address); });
  }

  Address range = 0;
  if (!unchanged([&] { return driver->reserve(4 * kGranule, range); })) return;
  bool mapped = false;
  for (const Address offset : {Address{0}, kGranule, 2 * kGranule}) {
    Handle handle = 0;
    const Tier tier = offset == 0 ? Tier::shared : Tier::dedicated;
    if (!unchanged([&] { return driver->create(kGranule, tier, handle); })) continue;
    int descriptor = -1;
    Handle imported = 0;
    if (unchanged([&] { return driver->export_handle(handle, descriptor); }) &&
        unchanged([&] { return driver->import_handle(descriptor, imported); })) {
      insist([&] { return driver->release(imported); });
    }
    const Address place = range + offset;
    if (unchanged([&] { return driver->map(place, kGranule, handle); })) {
      mapped = true;
      unchanged([&] { return driver->set_access(place, kGranule); });
    }
    insist([&] { return driver->release(handle); });
  }
  unchanged([&] { return driver->enable_peer(1); });
  unchanged([&] { return driver->set_access(range, 2 * kGranule); });
  if (mapped) insist([&] { return driver->unmap(range, 4 * kGranule); });
  insist([&] { return driver->unreserve(range, 4 * kGranule); });
}

}  // namespace

TEST(cuda_leaks_nothing_wherever_a_call_fails) {
  // These calls are not repeated after a failure, so they are never made to fail. They only restore
  // the thread's state or end the driver.
  const std::set<std::string> only_undo{"cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2",
                                        "cuEventDestroy_v2"};
  const std::set<std::string> begin_each_call{"cuCtxGetCurrent", "cuCtxPushCurrent_v2",
                                              "cuThreadExchangeStreamCaptureMode"};
  std::map<std::string, int> calls;
  {
    Machine machine;
    use_everything(machine);
    calls = machine.fake.calls;
  }
  // `use_everything` uses all entry points except two kinds: those that return an error's name, and
  // those that only ranges with holes need.
  CHECK_EQUAL(calls.size(), 36U);
  for (const auto& [entry, count] : calls) {
    if (only_undo.contains(entry)) continue;
    // Every second exchange of the capture mode restores the mode, and is never made to fail.
    const int step = entry == "cuThreadExchangeStreamCaptureMode" ? 2 : 1;
    const int last = begin_each_call.contains(entry) ? count - step : count;
    for (int nth = 1; nth <= last; nth += step) {
      for (const Result result : {cuda::kOutOfMemory, kUnknown}) {
        Machine machine;
        machine.fail(entry, result, nth);
        use_everything(machine);
        CHECK_EQUAL(machine.fake.state(), "");
        CHECK(machine.fake.events.empty());
        CHECK_EQUAL(machine.fake.retained[0], 0);
        CHECK(machine.thread.contexts.empty());
        CHECK_EQUAL(machine.thread.capture_mode, 0);
      }
    }
  }
}

TEST(cuda_serves_several_threads) {
  Machine machine;
  const auto driver = machine.start();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        Event event = 0;
        CHECK_EQUAL(driver->record(0, event), Status::success);
        const Address address = map_granules(*driver, 2);
        CHECK_EQUAL(driver->query(event), Status::success);
        CHECK_EQUAL(driver->destroy(event), Status::success);
        CHECK_EQUAL(driver->unmap(address, 2 * kGranule), Status::success);
        CHECK_EQUAL(driver->unreserve(address, 2 * kGranule), Status::success);
      }
    });
  }
  CHECK_EQUAL(driver->enable_peer(1), Status::success);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(machine.fake.state(), "");
  CHECK(machine.fake.events.size() <= 4);
}

}  // namespace plimsoll
