#include "plimsoll/driver/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

namespace plimsoll {
namespace {

// The file names of one version of control groups (cgroup v1 or v2), and the key in memory.stat
// that counts unused page cache.
struct Version {
  const char* limit;
  const char* usage;
  const char* unused_files;
};
constexpr Version kFirst{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};
constexpr Version kSecond{"/memory.max", "/memory.current", "inactive_file"};

// Returns a file's content; empty if there is no such file. Reads to the end, because these files
// report no size.
std::string content_of(const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "re"));
  std::string content;
  char part[4096];
  while (file != nullptr) {
    const std::size_t size = std::fread(part, 1, sizeof part, file.get());
    if (size == 0) break;
    content.append(part, size);
  }
  return content;
}

// Returns the part of `text` before the first `end`. Removes this part and the `end` from `text`.
std::string_view take_until(std::string_view& text, char end) {
  const std::string_view taken = text.substr(0, text.find(end));
  text.remove_prefix(std::min(taken.size() + 1, text.size()));
  return taken;
}

// Returns the number that the text begins with; nothing if there is none, as in "max".
std::optional<Bytes> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  Bytes number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc{} ? std::optional(number) : std::nullopt;
}

// Returns the number in the file's line that begins with the word `name`; 0 if there is none.
Bytes number_of(const std::string& path, std::string_view name) {
  const std::string content = content_of(path);
  for (std::string_view lines = content; !lines.empty();) {
    std::string_view line = take_until(lines, '\n');
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(':')) line.remove_prefix(1);
    if (line.starts_with(' ')) return number_at(line).value_or(0);
  }
  return 0;
}

bool has_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    if (take_until(controllers, ',') == "memory") return true;
  }
  return false;
}

void apply_limit(const std::string& group, const Version& version, MemoryInfo& memory) {
  const auto limit = number_at(content_of(group + version.limit));
  if (!limit) return;
  const Bytes usage = number_at(content_of(group + version.usage)).value_or(0);
  const Bytes unused_files = number_of(group + "/memory.stat", version.unused_files);
  const Bytes used = usage - std::min(usage, unused_files);
  memory.total = std::min(memory.total, *limit);
  memory.free = std::min(memory.free, *limit - std::min(*limit, used));
}

}  // namespace

MemoryInfo host_memory(const std::string& root) {
  const std::string known = root + "/proc/meminfo";
  MemoryInfo memory{number_of(known, "MemAvailable") * kKiB, number_of(known, "MemTotal") * kKiB};

  // Each line is "number:controllers:path"; in version 2 there are no controllers. A group's limit
  // also holds for the groups within it, so all groups on the path are checked. A container may see
  // its own group as the root group.
  const std::string groups = content_of(root + "/proc/self/cgroup");
  for (std::string_view lines = groups; !lines.empty();) {
    std::string_view path = take_until(lines, '\n');
    take_until(path, ':');
    const std::string_view controllers = take_until(path, ':');
    const bool is_second = controllers.empty();
    if (!path.starts_with('/') || (!is_second && !has_memory(controllers))) continue;
    const std::string top = root + (is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    while (true) {
      const bool is_top = path.empty() || path == "/";
      apply_limit(is_top ? top : top + std::string(path), is_second ? kSecond : kFirst, memory);
      if (is_top) break;
      path = path.substr(0, path.rfind('/'));
    }
  }
  return memory;
}

}  // namespace plimsoll
