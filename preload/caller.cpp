#include "caller.h"

#include <sys/uio.h>

#include <cstdio>

#include "kernel.h"

namespace plimsoll::scratch {
namespace {

using Is = Meant::Is;

constexpr int kMostLinks = 40;  // Linux follows at most 40 links in one path
constexpr std::size_t kPage = 4096;

bool is_name(const char* name, std::size_t size, const char* wanted) {
  return size == std::strlen(wanted) && std::memcmp(name, wanted, size) == 0;
}

bool read_link(const Path& link, Path& target) {
  char text[PATH_MAX];
  const ssize_t size = kernel::readlink(link.c_str(), text, sizeof text);
  target.cut(0);
  return size > 0 && target.append(text, static_cast<std::size_t>(size));
}

Is why_not() { return errno == EACCES || errno == EPERM ? Is::unknown : Is::nowhere; }

bool is_same(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Returns whether this is a special link of /proc, such as /proc/self/fd/3. The kernel follows it
// to the open file itself; the link's text only describes that file.
bool is_magic(const Path& link, const Path& target) {
  constexpr char kProcesses[] = "/proc";
  return link.is_in(kProcesses, sizeof kProcesses - 1) &&
         (target.c_str()[0] == '/' || std::strchr(target.c_str(), ':') != nullptr);
}

// Finds the file behind a special link in /proc. The link may stand in the middle of a path.
Is follow_magic(const Path& link, const Path& target, Meant& meant) {
  struct stat named;
  if (kernel::status_at(AT_FDCWD, link.c_str(), &meant.status, 0) != 0) return why_not();
  if (target.c_str()[0] != '/' || kernel::lstat(target.c_str(), &named) != 0 ||
      !is_same(named, meant.status)) {
    return Is::unnamed;
  }
  meant.path = target;
  meant.exists = true;
  return Is::found;
}

Is look_at(Meant& meant) {
  meant.exists = kernel::lstat(meant.path.c_str(), &meant.status) == 0;
  return meant.exists || errno == ENOENT ? Is::found : why_not();
}

void leave(const Path& root, Path& path) {
  if (path.size() > root.size()) path.leave();
}

// Returns the start of the first name in `rest`, and sets `size` to the name's length. The rest
// after the name is empty or begins with a slash.
const char* take_name(const char* rest, std::size_t& size) {
  while (*rest == '/') ++rest;
  size = std::strcspn(rest, "/");
  return rest;
}

}  // namespace

bool Caller::read(unsigned long long address, void* to, std::size_t size) const {
  const iovec own{to, size};
  const iovec its{reinterpret_cast<void*>(address), size};
  return process_vm_readv(process_, &own, 1, &its, 1, 0) == static_cast<ssize_t>(size);
}

// Reads page by page, because the page after the one in which the text ends may be unmapped.
bool Caller::read_text(unsigned long long address, Path& text) const {
  char part[kPage];
  text.cut(0);
  while (true) {
    const std::size_t size = kPage - address % kPage;
    if (!read(address, part, size)) return false;
    const std::size_t found = strnlen(part, size);
    if (!text.append(part, found)) return false;
    if (found < size) return true;
    address += size;
  }
}

bool Caller::own_file(Path& path, const char* name) const {
  char text[64];
  std::snprintf(text, sizeof text, "/proc/%d/%s", static_cast<int>(process_), name);
  return path.set(text);
}

bool Caller::find_program(Path& path) const {
  Path link;
  return own_file(link, "exe") && read_link(link, path);
}

Meant::Is Caller::find_open(int file, Meant& meant) const {
  char name[32] = "cwd";
  if (file != AT_FDCWD) std::snprintf(name, sizeof name, "fd/%d", file);
  Path link;
  Path target;
  (void)own_file(link, name);
  return read_link(link, target) ? follow_magic(link, target, meant) : why_not();
}

Meant::Is Caller::find(int folder, const char* path, bool follows, Meant& meant) const {
  Path link;
  Path root;
  (void)own_file(link, "root");
  if (!read_link(link, root)) return why_not();
  Path pending;
  if (path[0] == '\0' || !pending.set(path)) return Is::nowhere;
  if (path[0] == '/') {
    meant.path = root;
  } else if (const Is is = find_open(folder, meant); is != Is::found) {
    return is == Is::unnamed ? Is::nowhere : is;
  }
  return walk(root, pending, follows, meant);
}

// Looks up the names of `pending`, one after another, as the kernel does for the caller. The walk
// begins in the folder `meant`.
Meant::Is Caller::walk(const Path& root, Path& pending, bool follows, Meant& meant) const {
  int links = 0;
  while (true) {
    std::size_t size = 0;
    const char* name = take_name(pending.c_str(), size);
    if (size == 0) return look_at(meant);
    const char* after = name + size;
    const bool is_last = after[std::strspn(after, "/")] == '\0';
    const Path parent = meant.path;
    if (is_name(name, size, "..")) {
      leave(root, meant.path);
    } else if (!is_name(name, size, ".") && !meant.path.enter(name, size)) {
      return Is::nowhere;
    }
    Path rest;
    (void)rest.append(after);
    pending = rest;
    if (const Is is = look_at(meant); is != Is::found) return is;
    if (!meant.exists) return is_last ? Is::found : Is::nowhere;
    const bool is_link = S_ISLNK(meant.status.st_mode);
    if (is_last && pending.empty() && !(is_link && follows)) return Is::found;
    if (!is_link) continue;
    if (++links > kMostLinks) return Is::nowhere;
    const Is is = follow(root, parent, pending, meant);
    if (is == Is::unnamed && !is_last) return Is::nowhere;
    if (is != Is::found) return is;
  }
}

// Follows the link `meant`, which a walk has reached. Sets `meant` to the place from which the walk
// continues, and puts the names of the link's target before those in `pending`. For a special link
// of /proc, `meant` becomes the file that the link leads to, and `pending` does not change.
Meant::Is Caller::follow(const Path& root, const Path& parent, Path& pending, Meant& meant) const {
  if (is_itself(meant.path)) return Is::found;
  Path target;
  if (!read_link(meant.path, target)) return why_not();
  if (is_magic(meant.path, target)) return follow_magic(Path(meant.path), target, meant);
  meant.path = target.c_str()[0] == '/' ? root : parent;
  if (!target.append(pending.c_str())) return Is::nowhere;
  pending = target;
  return Is::found;
}

// Replaces /proc/self and /proc/thread-self by the caller's folders in /proc, because in the
// supervisor these links lead to the supervisor. Returns false for other links.
bool Caller::is_itself(Path& link) const {
  const bool is_thread = std::strcmp(link.c_str(), "/proc/thread-self") == 0;
  if (!is_thread && std::strcmp(link.c_str(), "/proc/self") != 0) return false;
  char name[32];
  std::snprintf(name, sizeof name, "task/%d", static_cast<int>(process_));
  return own_file(link, is_thread ? name : "");
}

}  // namespace plimsoll::scratch
