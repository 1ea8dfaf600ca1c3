#include "plimsoll/driver/host_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

// A folder with the files that Linux has in /proc and /sys on a machine with 64 GiB of memory, of
// which 40 GiB are available.
class Machine {
 public:
  Machine() : root_(fs::temp_directory_path() / ("plimsoll-host-" + std::to_string(getpid()))) {
    write("proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree:         1048576 kB\n"
          "MemAvailable:   41943040 kB\n");
  }
  ~Machine() { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  [[nodiscard]] MemoryInfo memory() const { return host_memory(root_.string()); }

 private:
  fs::path root_;
};

}  // namespace

TEST(host_memory_is_what_the_kernel_tells) {
  const Machine machine;
  CHECK_EQUAL(machine.memory().total, 64_GiB);
  CHECK_EQUAL(machine.memory().free, 40_GiB);
  const MemoryInfo here = host_memory();
  CHECK(here.total > 0 && here.free <= here.total);
  CHECK_EQUAL(host_memory("/no/such/root").total, 0U);
}

TEST(host_memory_is_limited_by_control_groups_of_the_second_version) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/jobs/mine\n");
  machine.write("sys/fs/cgroup/jobs/memory.max", "max\n");
  machine.write("sys/fs/cgroup/jobs/memory.current", "9999999999\n");
  CHECK_EQUAL(machine.memory().free, 40_GiB);

  // The page cache of inactive files counts as free memory.
  machine.write("sys/fs/cgroup/jobs/mine/memory.max", std::to_string(16_GiB));
  machine.write("sys/fs/cgroup/jobs/mine/memory.current", std::to_string(10_GiB));
  machine.write("sys/fs/cgroup/jobs/mine/memory.stat",
                "anon 8\ninactive_file " + std::to_string(4_GiB) + "\n");
  CHECK_EQUAL(machine.memory().total, 16_GiB);
  CHECK_EQUAL(machine.memory().free, 10_GiB);

  machine.write("sys/fs/cgroup/jobs/memory.max", std::to_string(8_GiB));
  CHECK_EQUAL(machine.memory().total, 8_GiB);
  CHECK_EQUAL(machine.memory().free, 0U);
}

TEST(host_memory_is_limited_by_control_groups_of_the_first_version) {
  const Machine machine;
  machine.write("proc/self/cgroup", "5:cpu:/other\n4:hugetlb,memory:/docker/7\n0::/\n");
  machine.write("sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_EQUAL(machine.memory().total, 64_GiB);

  // Inside a container, /sys/fs/cgroup/memory itself holds the files of the container's own cgroup.
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(4_GiB));
  machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(3_GiB));
  machine.write("sys/fs/cgroup/memory/memory.stat",
                "total_inactive_file " + std::to_string(1_GiB) + "\n");
  CHECK_EQUAL(machine.memory().total, 4_GiB);
  CHECK_EQUAL(machine.memory().free, 2_GiB);
}

}  // namespace plimsoll
