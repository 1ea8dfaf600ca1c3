#include "layer.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "kernel.h"

namespace plimsoll::scratch {
namespace {

constexpr std::size_t kMarkSize = sizeof kMark - 1;
constexpr mode_t kBridge = S_ISUID;
constexpr int kMostLinks = 40;  // Linux follows at most 40 links in one path
constexpr const char* kFree[] = {"/dev", "/proc", "/sys"};

using Lies = Place::Lies;

struct Folders {
  Path top, files, made, lock;
  Path given;  // the lines of PLIMSOLL_SCRATCH: the layer's folder, free folders, and the pass
  bool is_given = false;
};
// `begin` fills `folders` before any other code of the process runs. They never change afterwards.
constinit Folders folders;
constinit std::atomic<bool> is_written{false};

// Reads the pass (pass.h) from the last line of `given`. If there is a wall, that line is # and 16
// hexadecimal digits.
void take_pass(const char* given) {
  const char* last = std::strrchr(given, '\n');
  if (last != nullptr && last[1] == '#') set_pass(std::strtoul(last + 2, nullptr, 16));
}

__attribute__((constructor(101))) void begin() {
  const char* given = std::getenv("PLIMSOLL_SCRATCH");
  if (given == nullptr || given[0] != '/' || !folders.given.set(given)) return;
  if (!folders.top.append(given, std::strcspn(given, "\n"))) return;
  folders.is_given = true;
  take_pass(given);
  struct Inner {
    Path* path;
    const char* name;
  };
  for (const Inner& inner : {Inner{&folders.files, "/files"}, Inner{&folders.made, "/made"},
                             Inner{&folders.lock, "/lock"}}) {
    *inner.path = folders.top;
    folders.is_given = folders.is_given && inner.path->append(inner.name);
  }
}

int fails(int error) {
  errno = error;
  return -1;
}

bool is_dots(const char* name) {
  return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

const char* after_slashes(const char* text) { return text + std::strspn(text, "/"); }

int read_link(const char* path, Path& text) {
  char buffer[PATH_MAX];
  const ssize_t size = kernel::readlink(path, buffer, sizeof buffer);
  if (size < 0) return -1;
  text.cut(0);
  return text.append(buffer, static_cast<std::size_t>(size)) ? 0 : fails(ENAMETOOLONG);
}

bool is_marked(const Path& link) {
  return link.size() > kMarkSize && std::memcmp(link.c_str(), kMark, kMarkSize) == 0;
}

bool is_free(const Path& path) {
  for (const char* each : kFree) {
    if (path.is_in(each, std::strlen(each))) return true;
  }
  const char* each = folders.given.c_str();
  while (*each != '\0') {
    const std::size_t size = std::strcspn(each, "\n");
    if (size > 1 && path.is_in(each, size)) return true;
    each += size;
    if (*each == '\n') ++each;
  }
  return false;
}

// Looks up the last name of `place.path`, and sets the other members of `place`. The place lies in
// `folder`, a path on the disk; `folder_lies` says whether that is a real folder, a bridge or a
// copy.
int look_up(Lies folder_lies, const Path& folder, Place& place) {
  place.exists = false;
  if (folder_lies != Lies::real) {
    if (in_files(place.path, place.physical) != 0) return -1;
    if (kernel::lstat(place.physical.c_str(), &place.status) == 0) {
      if (S_ISDIR(place.status.st_mode) && (place.status.st_mode & kBridge) != 0) {
        place.lies = Lies::bridge;
        place.physical = place.path;
        place.exists = true;
        return 0;
      }
      place.lies = Lies::copied;
      place.exists = true;
      if (!S_ISLNK(place.status.st_mode)) return 0;
      Path target;
      if (read_link(place.physical.c_str(), target) != 0) return -1;
      if (!is_marked(target)) return 0;
      place.lies = Lies::real;
      place.physical.cut(0);
      if (!place.physical.append(target.c_str() + kMarkSize)) return fails(ENAMETOOLONG);
    } else if (errno != ENOENT) {
      return -1;
    } else if (folder_lies == Lies::copied) {
      place.lies = Lies::copied;
      return 0;
    } else {
      place.lies = Lies::real;
      place.physical = place.path;
    }
  } else {
    place.lies = Lies::real;
    place.physical = folder;
    if (!place.physical.enter(place.path.name())) return fails(ENAMETOOLONG);
  }
  if (kernel::lstat(place.physical.c_str(), &place.status) == 0) {
    place.exists = true;
    return 0;
  }
  return errno == ENOENT ? 0 : -1;
}

void look_up_root(Place& place) {
  (void)place.path.set("/");
  place.physical = place.path;
  place.lies = Lies::bridge;
  place.exists = true;
  place.status.st_mode = S_IFDIR;
}

// Looks up each name of an absolute path that has no links.
int look_up_all(const Path& path, Place& place) {
  look_up_root(place);
  const char* rest = after_slashes(path.c_str());
  while (*rest != '\0') {
    const std::size_t size = std::strcspn(rest, "/");
    const Lies lies = place.lies;
    const Path folder = place.physical;
    if (!place.exists) return fails(ENOENT);
    if (!place.path.enter(rest, size)) return fails(ENAMETOOLONG);
    if (look_up(lies, folder, place) != 0) return -1;
    rest = after_slashes(rest + size);
  }
  return 0;
}

// Reads the status of a bridge at the end of a path. A bridge before the end needs no status,
// because a walk needs to know only that it is a folder.
int complete(Place& place) {
  if (place.lies != Lies::bridge) return 0;
  place.exists = kernel::lstat(place.physical.c_str(), &place.status) == 0;
  return 0;
}

bool has_parent_name(const char* rest) {
  while (*rest != '\0') {
    const std::size_t size = std::strcspn(rest, "/");
    if (size == 2 && rest[0] == '.' && rest[1] == '.') return true;
    rest = after_slashes(rest + size);
  }
  return false;
}

// Looks a path up one name at a time, as the kernel does. `place` is the place that the walk has
// reached.
class Walk {
 public:
  Walk(bool follows_last, Place& place) : follows_last_(follows_last), place_(place) {}

  int begin(int folder, const char* path) {
    place_.is_free = false;
    look_up_root(place_);
    if (path[0] != '/') {
      if (seen_path(folder, pending_) != 0) return -1;
      if (!pending_.append("/")) return fails(ENAMETOOLONG);
    }
    if (!pending_.append(path)) return fails(ENAMETOOLONG);
    rest_ = pending_.c_str();
    return 0;
  }

  int finish() {
    while (true) {
      rest_ = after_slashes(rest_);
      if (is_free(place_.path) && !has_parent_name(rest_)) return leave_layer();
      if (*rest_ == '\0') return complete(place_);
      if (step() != 0) return -1;
    }
  }

 private:
  struct Name {
    const char* text;
    std::size_t size;
    bool has_slash;  // a slash follows the name
    bool is_last;

    [[nodiscard]] bool is(const char* other) const {
      return std::strlen(other) == size && std::memcmp(text, other, size) == 0;
    }
  };

  // Leaves the remaining names to the kernel, because the layer changes nothing below a free
  // folder.
  int leave_layer() {
    place_.is_free = true;
    place_.physical = place_.path;
    if (*rest_ != '\0' && !place_.physical.enter(rest_)) return fails(ENAMETOOLONG);
    place_.path = place_.physical;
    return 0;
  }

  int step() {
    if (!place_.exists) return fails(ENOENT);
    if (!S_ISDIR(place_.status.st_mode)) return fails(ENOTDIR);
    const Name name = take_name();
    if (name.is(".")) return 0;
    return name.is("..") ? enter_parent() : enter(name);
  }

  Name take_name() {
    const char* text = rest_;
    const std::size_t size = std::strcspn(text, "/");
    rest_ = after_slashes(text + size);
    return {text, size, text[size] == '/', *rest_ == '\0'};
  }

  int enter_parent() {
    Path parent = place_.path;
    parent.leave();
    return look_up_all(parent, place_);
  }

  int enter(const Name& name) {
    const Lies lies = place_.lies;
    const Path folder = place_.physical;
    const std::size_t folder_size = place_.path.size();
    if (!place_.path.enter(name.text, name.size)) return fails(ENAMETOOLONG);
    if (look_up(lies, folder, place_) != 0) return -1;
    if (!place_.exists) return 0;
    if (S_ISLNK(place_.status.st_mode) && is_followed(name)) return follow(name, folder_size);
    return name.is_last && name.has_slash && !S_ISDIR(place_.status.st_mode) ? fails(ENOTDIR) : 0;
  }

  [[nodiscard]] bool is_followed(const Name& name) const {
    return (!name.is_last || follows_last_ || name.has_slash) && !is_free(place_.path);
  }

  // Puts the link's target before the remaining names. The first `folder_size` characters of the
  // link's path are its folder.
  int follow(const Name& name, std::size_t folder_size) {
    if (++links_ > kMostLinks) return fails(ELOOP);
    Path target;
    if (read_link(place_.physical.c_str(), target) != 0) return -1;
    if (target.empty()) return fails(ENOENT);
    if (name.has_slash && !target.append("/")) return fails(ENAMETOOLONG);
    if (!name.is_last && !target.append(rest_)) return fails(ENAMETOOLONG);
    pending_ = target;
    rest_ = pending_.c_str();
    if (*rest_ == '/') {
      look_up_root(place_);
      return 0;
    }
    Path parent = place_.path;
    parent.cut(folder_size);
    return look_up_all(parent, place_);
  }

  const bool follows_last_;
  Place& place_;
  Path pending_;
  const char* rest_ = nullptr;  // the remaining names in `pending_`
  int links_ = 0;
};

int make_bridge(const Path& physical) {
  Path made;
  if (new_name(made) != 0 || kernel::mkdir(made.c_str(), 0700) != 0) return -1;
  if (kernel::chmod(made.c_str(), kBridge | 0700) != 0) return -1;
  return kernel::rename(made.c_str(), physical.c_str());
}

// Gives a copy the owner, times and mode of a real file. Only root can give a file to another user.
// So without root, the copy belongs to the process's user, and its mode adds the permissions that
// this user has on the real file.
int take_status(const char* physical, const Path& real, const struct stat& status) {
  mode_t mode = status.st_mode & 07777;
  if (S_ISDIR(status.st_mode)) mode &= ~kBridge;
  if (geteuid() == 0) {
    kernel::chown(physical, status.st_uid, status.st_gid);
  } else if (status.st_uid != geteuid()) {
    const int rights[][2] = {{R_OK, S_IRUSR}, {W_OK, S_IWUSR}, {X_OK, S_IXUSR}};
    for (const auto& [asked, bit] : rights) {
      if (kernel::access(real.c_str(), asked) == 0) mode |= static_cast<mode_t>(bit);
    }
  }
  const struct timespec times[] = {status.st_atim, status.st_mtim};
  kernel::utimensat(physical, times);
  return kernel::chmod(physical, mode);
}

// Appends to a file in the layer's folder with a single write, so that lines of several processes
// do not mix.
void append_to(const char* name, const char* text, std::size_t size) {
  Path file = folders.top;
  if (!file.append(name)) return;
  const int to = kernel::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (to < 0) return;
  (void)!syscall(SYS_write, to, text, size);
  kernel::close(to);
}

// Turns a folder of the layer into a copy of a real folder. A bridge becomes a copy only at the
// end, when `take_status` removes its set-user-ID bit.
int fill(const Path& physical, const Path& real) {
  struct stat status;
  if (kernel::lstat(real.c_str(), &status) != 0) return -1;
  const int from = kernel::open(real.c_str(), O_RDONLY | O_DIRECTORY);
  if (from < 0) return -1;
  const int to = kernel::open(physical.c_str(), O_RDONLY | O_DIRECTORY);
  int result = to < 0 ? -1 : 0;
  Path target;
  if (!target.set(kMark) || (real.size() > 1 && !target.append(real.c_str()))) {
    result = fails(ENAMETOOLONG);
  }
  const std::size_t folder_size = target.size();
  alignas(dirent64) char entries[8192];
  ssize_t size = 0;
  while (result == 0 && (size = kernel::getdents(from, entries, sizeof entries)) > 0) {
    for (ssize_t at = 0; result == 0 && at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      if (is_dots(entry->d_name)) continue;
      target.cut(folder_size);
      if (!target.enter(entry->d_name)) {
        result = fails(ENAMETOOLONG);
      } else if (kernel::symlinkat(target.c_str(), to, entry->d_name) != 0 && errno != EEXIST) {
        result = -1;
      }
    }
  }
  if (size < 0) result = -1;
  const int error = errno;
  kernel::close(from);
  if (to >= 0) kernel::close(to);
  errno = error;
  return result != 0 ? result : take_status(physical.c_str(), real, status);
}

// Moves the finished copy `made` to the place of a link of the layer. The copy was made under
// another name, so that no program sees it unfinished.
int replace_link(const Path& made, const Path& link, bool is_folder) {
  if (!is_folder) return kernel::rename(made.c_str(), link.c_str());
  if (kernel::rename(made.c_str(), link.c_str(), RENAME_EXCHANGE) == 0) {
    return kernel::unlink(made.c_str());
  }
  if (kernel::unlink(link.c_str()) != 0) return -1;
  return kernel::rename(made.c_str(), link.c_str());
}

// Makes a copy of the folder with this path, and of all folders above it. The path has no links.
int copy_folder(const Path& path) {
  struct stat status;
  if (kernel::lstat(folders.files.c_str(), &status) != 0 && make_bridge(folders.files) != 0) {
    return -1;
  }
  is_written = true;
  Place place;
  look_up_root(place);
  const char* rest = path.c_str() + 1;
  while (true) {
    Path physical;
    if (in_files(place.path, physical) != 0) return -1;
    const bool is_last = *rest == '\0';
    if (place.lies == Lies::real) {
      Path target;
      // The folder lies below a bridge, and the layer has nothing there yet.
      if (kernel::lstat(physical.c_str(), &status) != 0) {
        if (make_bridge(physical) != 0) return -1;
        place.lies = Lies::bridge;
      } else if (read_link(physical.c_str(), target) == 0 && is_marked(target)) {
        Path made;
        if (new_name(made) != 0 || kernel::mkdir(made.c_str(), 0700) != 0) return -1;
        if (fill(made, place.physical) != 0) return -1;
        if (replace_link(made, physical, true) != 0) return -1;
        place.lies = Lies::copied;
      } else {
        return fails(ENOTDIR);
      }
    }
    if (is_last && place.lies == Lies::bridge) return fill(physical, path);
    if (is_last) return 0;
    const std::size_t size = std::strcspn(rest, "/");
    const Lies lies = place.lies;
    const Path folder = place.physical;
    if (!place.path.enter(rest, size)) return fails(ENAMETOOLONG);
    if (look_up(lies, folder, place) != 0) return -1;
    if (!place.exists) return fails(ENOENT);
    if (!S_ISDIR(place.status.st_mode)) return fails(ENOTDIR);
    rest += size;
    if (*rest == '/') ++rest;
  }
}

// Copies bytes until the offset in `from` is `end`. Reading and writing begin at each file's
// current offset.
int copy_up_to(int from, int to, off_t end) {
  while (true) {
    const off_t left = end - lseek(from, 0, SEEK_CUR);
    if (left <= 0) return 0;
    const auto most = static_cast<std::size_t>(left);
    ssize_t size = syscall(SYS_copy_file_range, from, nullptr, to, nullptr, most, 0U);
    if (size < 0 && errno != EINTR && errno != ENOSPC) size = sendfile(to, from, nullptr, most);
    if (size == 0) return 0;  // another process made the file shorter
    if (size < 0 && errno != EINTR) return -1;
  }
}

// Copies a whole file. File systems that can share bytes between files do so; holes stay holes.
int copy_bytes(int from, int to) {
  if (ioctl(to, FICLONE, from) == 0) return 0;
  struct stat status;
  if (kernel::status_at(from, "", &status, AT_EMPTY_PATH) != 0) return -1;
  off_t place = 0;
  while (place < status.st_size) {
    off_t start = lseek(from, place, SEEK_DATA);
    if (start < 0 && errno == ENXIO) break;  // the rest is a hole
    off_t end = start < 0 ? -1 : lseek(from, start, SEEK_HOLE);
    if (start < 0) start = place;  // the file system cannot find holes
    if (end < 0) end = status.st_size;
    if (lseek(from, start, SEEK_SET) < 0 || lseek(to, start, SEEK_SET) < 0) return -1;
    if (copy_up_to(from, to, end) != 0) return -1;
    place = end;
  }
  return ftruncate(to, status.st_size);
}

int copy_file(const Path& real, const Path& made, bool with_contents) {
  const int to = kernel::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (to < 0) return -1;
  int result = 0;
  if (with_contents) {
    const int from = kernel::open(real.c_str(), O_RDONLY);
    result = from < 0 ? -1 : copy_bytes(from, to);
    if (from >= 0) kernel::close(from);
  }
  const int error = errno;
  kernel::close(to);
  if (result != 0) kernel::unlink(made.c_str());
  errno = error;
  return result;
}

}  // namespace

const Path& top_folder() { return folders.top; }
const Path& given_folders() { return folders.given; }

void note_removed(const Path& path) {
  if (kernel::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return;
  append_to("/removed", path.c_str(), path.size() + 1);
}

void note_shared(const char* name) {
  Path line;
  if (line.append(name) && line.append("\n")) append_to("/shared", line.c_str(), line.size());
}

int new_name(Path& path) {
  static std::atomic<unsigned> count{0};
  kernel::mkdir(folders.made.c_str(), 0700);
  char name[48];
  std::snprintf(name, sizeof name, "%d.%u", static_cast<int>(getpid()), count++);
  path = folders.made;
  return path.enter(name) ? 0 : fails(ENAMETOOLONG);
}

int in_files(const Path& path, Path& physical) {
  physical = folders.files;
  return path.size() == 1 || physical.append(path.c_str()) ? 0 : fails(ENAMETOOLONG);
}

bool is_active(bool is_read) {
  if (!folders.is_given) return false;
  if (!is_read || is_written.load(std::memory_order_relaxed)) return true;
  const int error = errno;
  if (kernel::access(folders.files.c_str(), F_OK) == 0) is_written = true;
  errno = error;
  return is_written;
}

void to_seen(Path& physical) {
  if (!physical.is_in(folders.files)) return;
  Path seen;
  (void)seen.append(physical.c_str() + folders.files.size());
  if (seen.empty()) (void)seen.append("/");
  physical = seen;
}

int seen_path(int file, Path& path) {
  if (file == AT_FDCWD) {
    char buffer[PATH_MAX];
    if (syscall(SYS_getcwd, buffer, sizeof buffer) < 0) return -1;
    if (!path.set(buffer)) return fails(ENAMETOOLONG);
  } else {
    char name[48];
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    if (read_link(name, path) != 0) return fails(EBADF);
    // If the file was removed, the link's text ends in " (deleted)" and is not a path of the file.
    // So check that the path leads to the open file.
    struct stat named;
    struct stat opened;
    if (path.c_str()[0] == '/' &&
        (kernel::lstat(path.c_str(), &named) != 0 ||
         kernel::status_at(file, "", &opened, AT_EMPTY_PATH) != 0 ||
         named.st_ino != opened.st_ino || named.st_dev != opened.st_dev)) {
      return fails(ENOENT);
    }
  }
  if (path.c_str()[0] != '/') return fails(ENOENT);
  to_seen(path);
  return 0;
}

int find(int folder, const char* path, bool follows, Place& place) {
  if (path[0] == '\0') return fails(ENOENT);
  Walk walk(follows, place);
  return walk.begin(folder, path) != 0 ? -1 : walk.finish();
}

Change::Change() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &blocked_before_);
  const int error = errno;
  lock_ = kernel::open(folders.lock.c_str(), O_RDWR | O_CREAT, 0600);
  while (lock_ >= 0 && flock(lock_, LOCK_EX) != 0 && errno == EINTR) {
  }
  errno = error;
}

Change::~Change() {
  const int error = errno;
  if (lock_ >= 0) {
    // Closing does not release the lock if a child, forked in the meantime, has the file open.
    flock(lock_, LOCK_UN);
    kernel::close(lock_);
  }
  pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
  errno = error;
}

int enter_copy(const Place& place, Path& physical) {
  Path parent = place.path;
  parent.leave();
  Place folder;
  if (look_up_all(parent, folder) != 0) return -1;
  if (folder.lies != Lies::copied) {
    if (kernel::access(folder.physical.c_str(), W_OK | X_OK) != 0) return -1;
    if (copy_folder(parent) != 0) return -1;
  }
  return in_files(place.path, physical);
}

int copy_up(Place& place, bool with_contents) {
  if (place.lies == Lies::copied) return 0;
  const Path real = place.physical;
  const struct stat status = place.status;
  if (S_ISDIR(status.st_mode)) {
    if (copy_folder(place.path) != 0 || in_files(place.path, place.physical) != 0) return -1;
    place.lies = Lies::copied;
    return 0;
  }
  Path parent = place.path;
  parent.leave();
  if (copy_folder(parent) != 0 || in_files(place.path, place.physical) != 0) return -1;
  Path made;
  if (new_name(made) != 0) return -1;
  if (S_ISLNK(status.st_mode)) {
    Path target;
    if (read_link(real.c_str(), target) != 0) return -1;
    if (kernel::symlinkat(target.c_str(), AT_FDCWD, made.c_str()) != 0) return -1;
  } else if (S_ISREG(status.st_mode)) {
    if (copy_file(real, made, with_contents) != 0) return -1;
    if (take_status(made.c_str(), real, status) != 0) return -1;
  } else {
    return fails(EPERM);
  }
  if (replace_link(made, place.physical, false) != 0) return -1;
  place.lies = Lies::copied;
  return 0;
}

int copy_bridges(const Place& place) {
  if (place.lies == Lies::bridge && copy_folder(place.path) != 0) return -1;
  Path physical;
  if (in_files(place.path, physical) != 0) return -1;
  const int folder = kernel::open(physical.c_str(), O_RDONLY | O_DIRECTORY);
  if (folder < 0) return -1;
  int result = 0;
  alignas(dirent64) char entries[2048];
  ssize_t size = 0;
  while (result == 0 && (size = kernel::getdents(folder, entries, sizeof entries)) > 0) {
    for (ssize_t at = 0; result == 0 && at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      if (entry->d_type == DT_LNK || entry->d_type == DT_REG || is_dots(entry->d_name)) continue;
      Place inner;
      inner.path = place.path;
      if (!inner.path.enter(entry->d_name)) {
        result = fails(ENAMETOOLONG);
      } else if (look_up(Lies::copied, physical, inner) != 0) {
        result = -1;
      } else if (inner.exists && S_ISDIR(inner.status.st_mode) && inner.lies != Lies::real) {
        result = copy_bridges(inner);
      }
    }
  }
  const int error = errno;
  kernel::close(folder);
  errno = error;
  return result;
}

bool has_entries(const Place& place) {
  const int folder = kernel::open(place.physical.c_str(), O_RDONLY | O_DIRECTORY);
  if (folder < 0) return false;
  bool found = false;
  alignas(dirent64) char entries[2048];
  ssize_t size = 0;
  while (!found && (size = kernel::getdents(folder, entries, sizeof entries)) > 0) {
    for (ssize_t at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      found = found || !is_dots(entry->d_name);
    }
  }
  kernel::close(folder);
  return found;
}

}  // namespace plimsoll::scratch
