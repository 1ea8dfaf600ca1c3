#include "plimsoll/driver/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

// The names of one version's files, and of the line that tells of unused pages of files.
struct Version {
  const char* limit;
  const char* usage;
  const char* unused_files;
};
constexpr Version kFirst{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Version kSecond{"memory.max", "memory.current", "inactive_file"};

// None where there is no such file, or it says "max".
std::optional<Bytes> number_in(const fs::path& file) {
  Bytes number = 0;
  return std::ifstream(file) >> number ? std::optional(number) : std::nullopt;
}

// The number behind a line's first word.
Bytes number_of(const fs::path& file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    Bytes number = 0;
    words >> word >> number;
    if (word.ends_with(':')) word.pop_back();
    if (word == name) return number;
  }
  return 0;
}

bool has_memory(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

void apply_limit(const fs::path& group, const Version& version, MemoryInfo& memory) {
  const auto limit = number_in(group / version.limit);
  if (!limit) return;
  const Bytes usage = number_in(group / version.usage).value_or(0);
  const Bytes unused_files = number_of(group / "memory.stat", version.unused_files);
  const Bytes used = usage - std::min(usage, unused_files);
  memory.total = std::min(memory.total, *limit);
  memory.free = std::min(memory.free, *limit - std::min(*limit, used));
}

}  // namespace

MemoryInfo host_memory(const fs::path& root) {
  const fs::path known = root / "proc/meminfo";
  MemoryInfo memory{number_of(known, "MemAvailable") * kKiB, number_of(known, "MemTotal") * kKiB};

  // Each line is "number:controllers:path", the number 0 for version 2. A group's limit holds for
  // those within it; a container may see its own group as the topmost.
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const bool is_second = second == first + 1;
    if (!is_second && !has_memory(line.substr(first + 1, second - first - 1))) continue;
    const fs::path top = root / (is_second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    while (true) {
      apply_limit(top / group, is_second ? kSecond : kFirst, memory);
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return memory;
}

}  // namespace plimsoll
