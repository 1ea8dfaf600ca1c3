// Tests regions that leave the card and come back without losing content.

#include "plimsoll/allocator/elastic/apply/paused_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "support.h"
#include "tiered_gpu.h"

namespace plimsoll {
namespace {

constexpr RegionId kRegion = 1;
constexpr Call kCalls[] = {Call::allocate_host, Call::deallocate_host, Call::reserve,
                           Call::create,        Call::release,         Call::map,
                           Call::set_access,    Call::unmap,           Call::record,
                           Call::query,         Call::synchronize,     Call::copy};

// A region on a GPU: three live blocks of two streams, and free memory. A pause copies it in more
// than one batch.
struct Region {
  explicit Region(Bytes dedicated = 512_MiB, Bytes shared = 1_GiB) : gpu(dedicated, shared) {
    blocks = {gpu.malloc_in(kRegion, 150_MiB), gpu.malloc_in(kRegion, 40_MiB, 1),
              gpu.malloc_in(kRegion, 1_KiB)};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      gpu.fill(blocks[i], i + 1);
      addresses.push_back(blocks[i]->address);
    }
    gpu.free({gpu.malloc_in(kRegion, 30_MiB, 1)});
  }

  // Checks that the region is on the card, with the same addresses and content.
  void check_whole() {
    CHECK(!gpu.allocator.is_paused(kRegion));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CHECK_EQUAL(blocks[i]->address, addresses[i]);
      CHECK(gpu.holds(blocks[i], i + 1));
    }
    gpu.allocator.check_invariants();
  }
  void end() {
    for (Block* const block : blocks) gpu.free({block});
    gpu.check_nothing_is_left();
  }

  TieredGpu gpu;
  std::vector<Block*> blocks;
  std::vector<Address> addresses;
};

Bytes paused_bytes(const TieredGpu& gpu) {
  return static_cast<Bytes>(gpu.allocator.statistics().paused_bytes.current);
}

// Returns the bytes of page-locked host memory in use.
Bytes locked_bytes(const TieredGpu& gpu) {
  return static_cast<Bytes>(gpu.pool.statistics().active_bytes.current);
}

// A simulated disk. Its content can be reached only through `read` and `write`. Both
// functions call the driver, and fail if the driver fails.
class Disk final : public BackupStore {
 public:
  // If `failing` is given, it is the number of the call that fails. The number counts calls of
  // `read` and `write` together, from 0.
  explicit Disk(SimulatedDriver& driver, std::optional<int> failing = {})
      : driver_(driver), left_(failing) {}
  ~Disk() override {  // repeats calls that the driver refuses
    while (size_ > 0 && driver_.deallocate_host(address_) != Status::success) {
      static_cast<void>(driver_.synchronize());
    }
  }

  void reserve(Bytes size) override {
    require(driver_.allocate_host(size, address_));
    size_ = size;
  }
  void write(Bytes offset, Address from, Bytes size) override {
    count();
    require(driver_.copy(address_ + offset, from, size, 9));
    require(driver_.synchronize_stream(9));
  }
  void read(Bytes offset, Address to, Bytes size) override {
    count();
    require(driver_.copy(to, address_ + offset, size, 9));
    require(driver_.synchronize_stream(9));
  }

 private:
  static void require(Status status) {
    if (status != Status::success) throw BackupError("the disk failed");
  }
  void count() {
    if (left_ && (*left_)-- == 0) throw BackupError("the disk failed");
  }

  SimulatedDriver& driver_;
  std::optional<int> left_;
  Address address_ = 0;
  Bytes size_ = 0;
};

Backup disk_of(TieredGpu& gpu, std::optional<int> failing = {}) {
  return {&gpu.pool, std::make_unique<Disk>(gpu.driver, failing)};
}

}  // namespace

TEST(pause_gives_the_card_back_and_resume_brings_all_back) {
  Region region;
  TieredGpu& gpu = region.gpu;
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{222_MiB});
  CHECK_EQUAL(gpu.allocator.pause(kRegion, {&gpu.pool}), Bytes{192_MiB});
  CHECK(gpu.allocator.is_paused(kRegion));
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  CHECK_EQUAL(gpu.reserved(), Bytes{0});
  CHECK_EQUAL(paused_bytes(gpu), Bytes{192_MiB});
  CHECK_EQUAL(gpu.allocator.region_use(kRegion)->paused, Bytes{192_MiB});
  CHECK_EQUAL(gpu.allocator.region_use(kRegion)->reserved, Bytes{0});
  CHECK_EQUAL(gpu.allocator.region_use(kRegion)->allocated, Bytes{190_MiB + 1_KiB});
  gpu.allocator.check_invariants();
  for (const SegmentInfo& segment : gpu.allocator.segments()) CHECK(segment.paused);
  CHECK_EQUAL(locked_bytes(gpu), Bytes{192_MiB});

  CHECK_EQUAL(gpu.allocator.resume(kRegion), Bytes{192_MiB});
  CHECK_EQUAL(paused_bytes(gpu), Bytes{0});
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{192_MiB});
  region.check_whole();
  CHECK_EQUAL(gpu.malloc_in(kRegion, 2_MiB)->size, Bytes{2_MiB});
  gpu.allocator.pause(kRegion, {&gpu.pool});
  gpu.allocator.resume(kRegion);
  region.check_whole();
}

TEST(pause_without_a_backup_drops_the_content) {
  Region region;
  region.gpu.allocator.pause(kRegion, {});
  CHECK_EQUAL(region.gpu.driver.shared_used(), Bytes{0});
  region.gpu.allocator.resume(kRegion);
  for (const Block* const block : region.blocks) CHECK(region.gpu.holds(block, 0));
  region.gpu.allocator.check_invariants();
  region.end();
}

TEST(pause_copies_faster_than_nothing_else_runs) {
  Region region;
  const double before = region.gpu.host.now_ns();
  region.gpu.allocator.pause(kRegion, {});
  region.gpu.allocator.resume(kRegion);
  const double calls = region.gpu.host.now_ns() - before;
  region.gpu.allocator.pause(kRegion, {&region.gpu.pool});
  region.gpu.allocator.resume(kRegion);
  const double start = region.gpu.host.now_ns();
  // The backup's memory is page-locked already.
  region.gpu.allocator.pause(kRegion, {&region.gpu.pool});
  region.gpu.allocator.resume(kRegion);
  const double copies =
      2 * static_cast<double>(192_MiB) / region.gpu.driver.costs().copy_bytes_per_ns;
  const double elapsed = region.gpu.host.now_ns() - start;
  CHECK(elapsed >= copies);
  CHECK(elapsed < copies + calls);
}

TEST(pause_and_resume_that_make_no_sense_change_nothing) {
  Region region;
  TieredGpu& gpu = region.gpu;
  CHECK_THROWS(gpu.allocator.pause(7, {&gpu.pool}), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.resume(7), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.resume(kRegion), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.pause(kNoRegion, {&gpu.pool}), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.require_pausable(7), std::invalid_argument);
  gpu.allocator.require_pausable(kRegion);
  CHECK(!gpu.allocator.is_paused(7));
  gpu.allocator.begin_allocate_to_pool({0, 1}, Allocator::only_on(5));
  CHECK_THROWS(gpu.allocator.pause(kRegion, {&gpu.pool}), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.require_pausable(kRegion), std::invalid_argument);
  gpu.allocator.end_allocate_to_pool({0, 1});
  region.check_whole();
  gpu.allocator.pause(kRegion, {&gpu.pool});
  const std::string state = describe(gpu.allocator.segments());
  CHECK_THROWS(gpu.allocator.pause(kRegion, {&gpu.pool}), std::invalid_argument);
  CHECK_THROWS(gpu.allocator.require_pausable(kRegion), std::invalid_argument);
  gpu.allocator.begin_allocate_to_pool({0, 1}, Allocator::only_on(5));
  CHECK_THROWS(gpu.allocator.resume(kRegion), std::invalid_argument);
  gpu.allocator.end_allocate_to_pool({0, 1});
  CHECK(gpu.allocator.is_paused(kRegion));
  CHECK_EQUAL(describe(gpu.allocator.segments()), state);
  gpu.allocator.resume(kRegion);
  CHECK_THROWS(gpu.allocator.resume(kRegion), std::invalid_argument);
  region.check_whole();
}

TEST(pause_refuses_requests_in_the_region) {
  Region region;
  TieredGpu& gpu = region.gpu;
  gpu.allocator.pause(kRegion, {&gpu.pool});
  CHECK_THROWS(gpu.malloc_in(kRegion, 1_KiB), std::invalid_argument);
  CHECK_THROWS(gpu.malloc_in(kRegion, 4_MiB, 9), std::invalid_argument);
  {
    const Placed placed(kRegion, Tier::shared);
    CHECK_THROWS(gpu.malloc(4_MiB), std::invalid_argument);
  }
  const PoolId pool = ElasticPool::id_of(kRegion);
  gpu.allocator.begin_allocate_to_pool(pool, {});
  CHECK_THROWS(gpu.malloc(1_KiB), std::invalid_argument);
  gpu.allocator.end_allocate_to_pool(pool);
  gpu.allocator.release_pool(pool);
  CHECK_THROWS(gpu.allocator.export_memory(region.addresses[0]), std::invalid_argument);
  gpu.free({region.blocks[2]});
  CHECK_THROWS(gpu.allocator.malloc_at(region.addresses[2], 512, 0, pool), std::invalid_argument);
  gpu.malloc(512_MiB);
  gpu.allocator.set_pool_option(pool, PoolOption::use_on_oom, true);
  CHECK_THROWS(gpu.malloc(1_KiB), OutOfMemory);
  gpu.allocator.check_invariants();
}

TEST(pause_leaves_all_else_working) {
  Region region;
  TieredGpu& gpu = region.gpu;
  Block* const outside = gpu.malloc(10_MiB);
  Block* const other = gpu.malloc_in(2, 10_MiB);
  gpu.fill(outside, 50);
  gpu.fill(other, 51);
  gpu.allocator.pause(kRegion, {&gpu.pool});
  CHECK(gpu.holds(outside, 50) && gpu.holds(other, 51));
  // During the pause, other blocks can use the whole card. The program can still free a paused
  // block or record that a stream uses it.
  Block* const large = gpu.malloc(480_MiB);
  gpu.allocator.record_stream(region.blocks[0], 3);
  gpu.driver.hold(3);
  gpu.free({region.blocks[0]});
  gpu.allocator.check_invariants();
  gpu.allocator.poll();
  gpu.driver.finish(3);
  gpu.allocator.poll();
  gpu.allocator.check_invariants();
  gpu.allocator.empty_cache();
  CHECK_EQUAL(paused_bytes(gpu), Bytes{192_MiB});
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{0});
  gpu.free({large, outside, other});
  gpu.allocator.empty_cache();
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  // Blocks that were freed during the pause do not come back.
  CHECK(gpu.allocator.resume(kRegion) <= 48_MiB);
  CHECK(gpu.holds(region.blocks[1], 2) && gpu.holds(region.blocks[2], 3));
  gpu.allocator.check_invariants();
  gpu.free({region.blocks[1], region.blocks[2]});
  gpu.check_nothing_is_left();
}

TEST(pause_of_a_region_of_which_all_is_freed_takes_nothing_back) {
  Region region;
  region.gpu.allocator.pause(kRegion, {&region.gpu.pool});
  for (Block* const block : region.blocks) region.gpu.free({block});
  region.gpu.allocator.check_invariants();
  region.gpu.malloc(510_MiB);
  CHECK_EQUAL(region.gpu.allocator.resume(kRegion), Bytes{0});
  CHECK_EQUAL(paused_bytes(region.gpu), Bytes{0});
  region.gpu.allocator.check_invariants();
  CHECK_EQUAL(region.gpu.malloc_in(kRegion, 1_MiB)->size, Bytes{1_MiB});
}

// The backup lies in two adjacent allocations of host memory. After the frees, each of the two
// still holds the content of live blocks. No copy may cross from one allocation to the other.
TEST(resume_copies_from_one_allocation_of_the_backup_at_a_time) {
  TieredGpu gpu(512_MiB, 1_GiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(gpu.malloc_in(kRegion, 16_MiB));
  for (std::size_t i = 0; i < blocks.size(); ++i) gpu.fill(blocks[i], i + 1);
  gpu.allocator.pause(kRegion, {&gpu.pool});
  for (std::size_t i = 0; i < 6; ++i) gpu.free({blocks[i]});
  CHECK_EQUAL(gpu.allocator.resume(kRegion), Bytes{96_MiB});
  for (std::size_t i = 6; i < blocks.size(); ++i) CHECK(gpu.holds(blocks[i], i + 1));
  gpu.allocator.check_invariants();
}

TEST(pause_leaves_shared_pieces_where_they_are) {
  TieredGpu gpu(64_MiB, 1_GiB, SpillPolicy::spill);
  Block* const spilled = gpu.malloc_in(kRegion, 100_MiB);
  gpu.fill(spilled, 9);
  CHECK_EQUAL(spilled->shared, Bytes{36_MiB});
  CHECK_EQUAL(gpu.allocator.pause(kRegion, {&gpu.pool}), Bytes{64_MiB});
  CHECK_EQUAL(spilled->shared, Bytes{36_MiB});
  CHECK_EQUAL(gpu.allocator.region_use(kRegion)->shared_reserved, Bytes{36_MiB});
  gpu.allocator.check_invariants();
  CHECK_EQUAL(gpu.allocator.rebalance(1_GiB), Bytes{0});  // a paused region does not move
  CHECK_EQUAL(gpu.allocator.resume(kRegion), Bytes{64_MiB});
  CHECK(gpu.holds(spilled, 9));
  gpu.free({spilled});
  gpu.check_nothing_is_left();
}

TEST(pause_waits_for_the_work_on_the_region) {
  Region region;
  region.gpu.driver.launch(1, 5e8);
  const double before = region.gpu.host.now_ns();
  region.gpu.allocator.pause(kRegion, {});
  CHECK(region.gpu.host.now_ns() >= before + 5e8);
}

TEST(resume_without_room_leaves_the_region_paused) {
  Region region;
  TieredGpu& gpu = region.gpu;
  gpu.allocator.pause(kRegion, {&gpu.pool});
  Block* const others = gpu.malloc(400_MiB);
  CHECK_THROWS(gpu.allocator.resume(kRegion), OutOfMemory);
  CHECK(gpu.allocator.is_paused(kRegion));
  gpu.allocator.check_invariants();
  gpu.free({others});  // stays cached; resume releases it to make room
  gpu.allocator.set_limit(100_MiB);
  CHECK_THROWS(gpu.allocator.resume(kRegion), OutOfMemory);
  gpu.allocator.set_limit(192_MiB);
  CHECK_EQUAL(gpu.allocator.resume(kRegion), Bytes{192_MiB});
  region.check_whole();
  region.end();
}

TEST(pause_without_room_for_the_backup_changes_nothing) {
  Region region(512_MiB, 140_MiB);  // 140 MiB hold one of the backup's two parts, not both
  const std::size_t handles = region.gpu.driver.handles();
  CHECK_THROWS(region.gpu.allocator.pause(kRegion, {&region.gpu.pool}), HostOutOfMemory);
  region.check_whole();
  CHECK(region.gpu.driver.handles() <= handles);
  CHECK_EQUAL(region.gpu.pool.statistics().active_bytes.current, std::int64_t{0});
  region.gpu.allocator.pause(kRegion, {});
  region.gpu.allocator.resume(kRegion);
  region.end();
}

// --- through page-locked memory to a disk --------------------------------------------------------

TEST(pause_to_a_store_brings_the_content_back_and_holds_no_memory_meanwhile) {
  Region region;
  TieredGpu& gpu = region.gpu;
  CHECK_EQUAL(gpu.allocator.pause(kRegion, disk_of(gpu)), Bytes{192_MiB});
  CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
  CHECK_EQUAL(locked_bytes(gpu), Bytes{0});
  CHECK(gpu.pool.statistics().active_bytes.peak <= std::int64_t{64_MiB});
  gpu.allocator.resume(kRegion);
  CHECK_EQUAL(locked_bytes(gpu), Bytes{0});
  CHECK(gpu.pool.statistics().reserved_bytes.peak <= std::int64_t{64_MiB});
  region.check_whole();
  region.end();
}

TEST(pause_to_a_store_goes_on_with_as_little_page_locked_memory_as_there_is) {
  // The simulated disk takes 192 MiB of host memory, which leaves 20 MiB for a buffer.
  Region region(512_MiB, 192_MiB + 20_MiB);
  TieredGpu& gpu = region.gpu;
  gpu.allocator.pause(kRegion, disk_of(gpu));
  CHECK(gpu.pool.statistics().active_bytes.peak < std::int64_t{20_MiB});
  gpu.allocator.resume(kRegion);
  region.check_whole();
  region.end();
  Region without(512_MiB, 192_MiB + 2_MiB);
  CHECK_THROWS(without.gpu.allocator.pause(kRegion, disk_of(without.gpu)), HostOutOfMemory);
  without.check_whole();
  without.end();
}

TEST(pause_to_a_store_without_buffers_holds_none_of_them) {
  Region region;
  TieredGpu& gpu = region.gpu;
  gpu.driver.inject({Call::allocate_host, 2, 100, Status::failed});
  CHECK_THROWS(gpu.allocator.pause(kRegion, disk_of(gpu)), DriverError);
  gpu.driver.clear_faults();
  CHECK_EQUAL(gpu.pool.statistics().active_bytes.current, std::int64_t{0});
  region.check_whole();
  region.end();
}

TEST(resume_from_a_store_forgets_what_was_freed_meanwhile) {
  Region region;
  TieredGpu& gpu = region.gpu;
  gpu.allocator.pause(kRegion, disk_of(gpu));
  gpu.free({region.blocks[0]});
  CHECK(gpu.allocator.resume(kRegion) <= 48_MiB);
  CHECK(gpu.holds(region.blocks[1], 2) && gpu.holds(region.blocks[2], 3));
  gpu.allocator.check_invariants();
  gpu.free({region.blocks[1], region.blocks[2]});
  gpu.check_nothing_is_left();
}

TEST(pause_to_a_store_that_fails_changes_nothing) {
  for (int failing = 0;; ++failing) {
    Region region;
    TieredGpu& gpu = region.gpu;
    bool has_failed = false;
    try {
      gpu.allocator.pause(kRegion, disk_of(gpu, failing));
    } catch (const BackupError&) {
      has_failed = true;
      region.check_whole();
    }
    CHECK_EQUAL(locked_bytes(gpu), Bytes{0});
    gpu.allocator.check_invariants();
    if (!has_failed) {
      CHECK(failing > 8);                                        // a pause writes more than 8 times
      CHECK_THROWS(gpu.allocator.resume(kRegion), BackupError);  // the first read fails
      gpu.allocator.resume(kRegion);
    }
    region.end();
    if (!has_failed) return;
  }
}

TEST(resume_from_a_store_that_fails_stays_paused) {
  Region clean;
  clean.gpu.allocator.pause(kRegion, disk_of(clean.gpu));
  const std::uint64_t slices = clean.gpu.driver.calls(Call::copy) / 2;
  for (std::uint64_t failing = slices; failing < 2 * slices; ++failing) {
    Region region;
    TieredGpu& gpu = region.gpu;
    gpu.allocator.pause(kRegion, disk_of(gpu, static_cast<int>(failing)));
    CHECK_THROWS(gpu.allocator.resume(kRegion), BackupError);
    CHECK(gpu.allocator.is_paused(kRegion));
    CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
    CHECK_EQUAL(locked_bytes(gpu), Bytes{0});
    gpu.allocator.check_invariants();
    gpu.allocator.resume(kRegion);
    region.check_whole();
    region.end();
  }
}

namespace {

// Returns the descriptor of a file without a name, which is deleted when it is closed.
int nameless_file() {
  std::string path = std::filesystem::temp_directory_path() / "plimsoll-test-XXXXXX";
  const int descriptor = ::mkstemp(path.data());
  ::unlink(path.c_str());
  return descriptor;
}

}  // namespace

TEST(a_backup_file_holds_what_was_written_and_says_why_it_cannot) {
  const int descriptor = nameless_file();
  const std::string content(100'000, 'x');
  std::string read(content.size(), ' ');
  BackupFile file(descriptor);
  ::close(descriptor);
  file.reserve(200'000);
  file.write(50'000, reinterpret_cast<Address>(content.data()), content.size());
  file.read(50'000, reinterpret_cast<Address>(read.data()), read.size());
  CHECK(read == content);
  const std::string beyond = message_of<BackupError>([&] {
    file.read(190'000, reinterpret_cast<Address>(read.data()), read.size());
    return 0;
  });
  CHECK_EQUAL(beyond, std::string("cannot read the backup: Input/output error"));
  const int full = ::open("/dev/full", O_RDWR);
  BackupFile no_room(full);
  ::close(full);
  const std::string refused = message_of<BackupError>([&] {
    no_room.write(0, reinterpret_cast<Address>(content.data()), content.size());
    return 0;
  });
  CHECK_EQUAL(refused, std::string("cannot write the backup: No space left on device"));
}

TEST(a_file_that_stays_empty_needs_room_all_the_same) {
  const int descriptor = nameless_file();
  EmptyFile file(descriptor);
  file.reserve(1_MiB);
  struct stat found{};
  ::fstat(descriptor, &found);
  CHECK_EQUAL(found.st_blocks, 0);
  const std::string refused = message_of<BackupError>([&] {
    file.reserve(Bytes{1} << 60);
    return 0;
  });
  CHECK_EQUAL(refused, std::string("cannot write the backup: No space left on device"));
  ::close(descriptor);
}

// --- a driver that fails -------------------------------------------------------------------------

namespace {

// Makes each driver call of `attempt` fail once, and returns how often `attempt` failed. Each time
// the region must be whole on the card, or paused and able to resume.
template <typename Prepare, typename Attempt>
int fail_every_call(Status status, Prepare prepare, Attempt attempt, bool with_backup) {
  int failures = 0;
  for (const Call call : kCalls) {
    for (std::uint64_t position = 0; position < 60; ++position) {
      Region region;
      TieredGpu& gpu = region.gpu;
      prepare(region);
      const std::uint64_t calls = gpu.driver.calls(call);
      gpu.driver.inject({call, position, 1, status});
      try {
        attempt(region);
      } catch (const DriverError&) {
        ++failures;
      } catch (const OutOfMemory&) {
        ++failures;
      } catch (const HostOutOfMemory&) {
        ++failures;
      } catch (const BackupError&) {
        ++failures;
      }
      const bool was_called = gpu.driver.calls(call) > calls + position;
      gpu.driver.clear_faults();
      gpu.allocator.check_invariants();
      if (gpu.allocator.is_paused(kRegion)) {
        CHECK_THROWS(gpu.malloc_in(kRegion, 1_KiB), std::invalid_argument);
        gpu.allocator.resume(kRegion);
        if (with_backup) region.check_whole();
      } else {
        region.check_whole();
      }
      // The region can be paused and resumed as before the failure.
      gpu.allocator.pause(kRegion, {&gpu.pool});
      gpu.allocator.empty_cache();
      CHECK_EQUAL(gpu.driver.dedicated_used(), Bytes{0});
      gpu.allocator.resume(kRegion);
      if (with_backup) region.check_whole();
      region.end();
      if (!was_called) break;
    }
  }
  return failures;
}

}  // namespace

TEST(pause_survives_every_driver_call_that_fails) {
  for (const Status status : {Status::failed, Status::out_of_memory}) {
    for (const bool with_backup : {true, false}) {
      const int failures = fail_every_call(
          status, [](Region&) {},
          [&](Region& region) {
            TieredGpu& gpu = region.gpu;
            gpu.allocator.pause(kRegion, with_backup ? Backup{&gpu.pool} : Backup{});
          },
          with_backup);
      CHECK(failures >= 4);
    }
  }
}

TEST(resume_survives_every_driver_call_that_fails) {
  for (const Status status : {Status::failed, Status::out_of_memory}) {
    for (const bool to_disk : {false, true}) {
      const int failures = fail_every_call(
          status,
          [&](Region& region) {
            TieredGpu& gpu = region.gpu;
            gpu.allocator.pause(kRegion, to_disk ? disk_of(gpu) : Backup{&gpu.pool});
            gpu.free({gpu.malloc(400_MiB)});  // `resume` must first release this cached memory
          },
          [](Region& region) { region.gpu.allocator.resume(kRegion); }, true);
      CHECK(failures >= 8);
    }
  }
}

TEST(pause_to_a_store_survives_every_driver_call_that_fails) {
  for (const Status status : {Status::failed, Status::out_of_memory}) {
    const int failures = fail_every_call(
        status, [](Region&) {},
        [](Region& region) { region.gpu.allocator.pause(kRegion, disk_of(region.gpu)); }, true);
    CHECK(failures >= 30);
  }
}

// If a pause fails and its undoing fails too, the region is paused and its content is safe.
TEST(pause_that_cannot_be_undone_is_a_pause) {
  Region clean;
  const SimulatedDriver& driver = clean.gpu.driver;
  const std::uint64_t unmapped = driver.calls(Call::unmap);
  const std::uint64_t copied = driver.calls(Call::copy);
  clean.gpu.allocator.pause(kRegion, {&clean.gpu.pool});
  const std::uint64_t last = driver.calls(Call::unmap) - unmapped - 1;
  const std::uint64_t copies = driver.calls(Call::copy) - copied;
  for (const Call call : {Call::create, Call::map, Call::set_access, Call::copy}) {
    Region region;
    TieredGpu& gpu = region.gpu;
    gpu.driver.inject({Call::unmap, last, 1, Status::failed});
    gpu.driver.inject({call, call == Call::copy ? copies : 0, 1, Status::failed});
    CHECK_THROWS(gpu.allocator.pause(kRegion, {&gpu.pool}), DriverError);
    gpu.driver.clear_faults();
    gpu.allocator.check_invariants();
    CHECK(gpu.allocator.is_paused(kRegion));
    CHECK(gpu.allocator.region_use(kRegion)->reserved > 0);
    gpu.allocator.resume(kRegion);
    region.check_whole();
    region.end();
  }
}

TEST(resume_that_cannot_be_undone_stays_paused) {
  Region region;
  TieredGpu& gpu = region.gpu;
  gpu.allocator.pause(kRegion, {&gpu.pool});
  gpu.driver.inject({Call::copy, 1, 1, Status::failed});
  gpu.driver.inject({Call::unmap, 0, 2, Status::failed});
  CHECK_THROWS(gpu.allocator.resume(kRegion), DriverError);
  gpu.driver.clear_faults();
  gpu.allocator.check_invariants();
  CHECK(gpu.allocator.is_paused(kRegion));
  CHECK(gpu.allocator.region_use(kRegion)->reserved > 0);
  gpu.allocator.resume(kRegion);
  region.check_whole();
  region.end();
}

// --- at random -----------------------------------------------------------------------------------

namespace {

// A random program that knows the tag of each live block.
class Sequence {
 public:
  // How often each operation succeeded, and how often an operation failed (`errors`).
  struct Counts {
    int pauses = 0;
    int resumes = 0;
    int rebalances = 0;  // rebalances that moved memory
    int spills = 0;
    int errors = 0;
  };

  Sequence(std::uint64_t seed, Counts& counts)
      : random_(seed), gpu_(96_MiB, 192_MiB, SpillPolicy::spill), counts_(counts) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const bool fails = random_.one_in(2);
      if (fails) inject();
      try {
        step();
      } catch (const OutOfMemory&) {
      } catch (const HostOutOfMemory&) {
      } catch (const BackupError&) {  // the driver refused a call of the simulated disk
        ++counts_.errors;
      } catch (const DriverError& error) {
        if (!fails) check::fail(__FILE__, __LINE__, error.what());
        ++counts_.errors;
      }
      gpu_.driver.clear_faults();
      check();
    }
    end();
  }

 private:
  struct Live {
    Block* block;
    Bytes size;
    RegionId region;
    std::uint64_t tag;
  };

  void inject() {
    gpu_.driver.inject({random_.pick(kCalls), random_.below(6), 1,
                        random_.one_in(2) ? Status::failed : Status::out_of_memory});
  }

  void step() {
    const RegionId region = static_cast<RegionId>(random_.below(3));  // 0 is no region
    const std::uint64_t choice = random_.below(100);
    if (choice < 45) {
      malloc(region);
    } else if (choice < 65) {
      if (!live_.empty()) free(random_.below(live_.size()));
    } else if (choice < 69) {
      if (!live_.empty()) record_stream();
    } else if (choice < 74) {
      gpu_.driver.launch(random_.below(3), 1e5);
    } else if (choice < 82) {
      if (gpu_.allocator.region_use(region)) pause(region);
    } else if (choice < 90) {
      if (gpu_.allocator.is_paused(region)) {
        gpu_.allocator.resume(region);
        ++counts_.resumes;
      }
    } else if (choice < 94) {
      gpu_.allocator.empty_cache();  // makes room on the card for the rebalance
      if (gpu_.allocator.rebalance(random_.below(64_MiB)) > 0) ++counts_.rebalances;
    } else if (choice < 97) {
      gpu_.allocator.empty_cache();
    } else if (choice < 98) {
      gpu_.allocator.set_limit(random_.one_in(2) ? std::optional(random_.below(96_MiB))
                                                 : std::nullopt);
    } else if (choice < 99) {
      gpu_.allocator.set_spill_policy(random_.one_in(3) ? SpillPolicy::strict : SpillPolicy::spill);
    } else {
      gpu_.host.advance(1e6);
      gpu_.allocator.poll();
    }
  }

  void malloc(RegionId region) {
    const Placed placed(region, random_.one_in(5) ? Tier::shared : Tier::dedicated);
    const Bytes size = random_.one_in(3) ? random_.between(1, 1_MiB) : random_.between(1, 24_MiB);
    if (gpu_.allocator.is_paused(region)) {
      CHECK_THROWS(gpu_.malloc(size, random_.below(3)), std::invalid_argument);
      return;
    }
    Block* const block = gpu_.malloc(size, random_.below(3));
    gpu_.fill(block, ++tags_);
    live_.push_back({block, block->size, region, tags_});
  }

  void free(std::size_t which) {
    gpu_.allocator.free(live_[which].block);
    live_[which] = live_.back();
    live_.pop_back();
  }

  // Records that another stream uses a block.
  void record_stream() {
    gpu_.allocator.record_stream(random_.pick(live_).block, random_.below(3));
  }

  void pause(RegionId region) {
    if (gpu_.allocator.is_paused(region)) {
      CHECK_THROWS(gpu_.allocator.pause(region, {&gpu_.pool}), std::invalid_argument);
    } else {
      gpu_.allocator.pause(region, random_.one_in(2) ? disk_of(gpu_) : Backup{&gpu_.pool});
      ++counts_.pauses;
    }
  }

  void check() {
    gpu_.allocator.check_invariants();
    std::map<Address, Bytes> places;
    for (const Live& live : live_) {
      CHECK_EQUAL(live.block->size, live.size);
      CHECK(live.block->allocated);
      const auto [place, is_new] = places.emplace(live.block->address, live.size);
      CHECK(is_new);
      if (place != places.begin()) {
        CHECK(std::prev(place)->first + std::prev(place)->second <= place->first);
      }
      if (std::next(place) != places.end()) {
        CHECK(place->first + place->second <= std::next(place)->first);
      }
      if (!gpu_.allocator.is_paused(live.region)) CHECK(gpu_.holds(live.block, live.tag));
    }
  }

  void end() {
    counts_.spills += static_cast<int>(gpu_.allocator.statistics().num_spills);
    gpu_.allocator.set_limit(std::nullopt);
    for (const RegionId region : {RegionId{1}, RegionId{2}}) {
      if (!gpu_.allocator.is_paused(region)) continue;
      try {
        gpu_.allocator.resume(region);
      } catch (const OutOfMemory&) {  // other blocks fill the card, so they are freed first
        for (std::size_t i = live_.size(); i-- > 0;) {
          if (live_[i].region != region) free(i);
        }
        gpu_.allocator.resume(region);
      } catch (const HostOutOfMemory&) {  // no host memory for the buffer that reads the disk
        while (!live_.empty()) free(0);
        gpu_.allocator.resume(region);
      }
      check();
    }
    while (!live_.empty()) free(0);
    gpu_.driver.synchronize();
    gpu_.check_nothing_is_left();
  }

  Random random_;
  TieredGpu gpu_;
  Counts& counts_;
  std::vector<Live> live_;
  std::uint64_t tags_ = 0;
};

}  // namespace

TEST(tiers_lose_nothing_in_random_sequences_with_faults) {
  Sequence::Counts counts;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    try {
      Sequence(seed, counts).run(100);
    } catch (const std::exception& error) {
      check::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + error.what());
    }
  }
  CHECK(counts.pauses > 1000);
  CHECK(counts.resumes > 1000);
  CHECK(counts.rebalances > 300);
  CHECK(counts.spills > 1000);
  CHECK(counts.errors > 500);
}

}  // namespace plimsoll
