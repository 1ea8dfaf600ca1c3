// Decides whether a system call may change a file. To protect a user's files, the wall (wall.h)
// makes the kernel hold each call that could change a file, until the wall's supervisor has
// answered.
#include <linux/fs.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdio>

#include "caller.h"
#include "kernel.h"
#include "wall.h"
#include "watched.h"

namespace plimsoll::scratch {
namespace {

using Is = Meant::Is;

struct Writable {
  const char* const* paths;
  int count;
};

bool is_same(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

bool is_listed(const struct stat& status, const Writable& writable) {
  struct stat listed;
  for (int at = 0; at < writable.count; ++at) {
    if (kernel::status_at(AT_FDCWD, writable.paths[at], &listed, 0) == 0 &&
        is_same(listed, status)) {
      return true;
    }
  }
  return false;
}

// Returns whether the path's text alone shows that the path lies below a writable folder. This is
// fast. It misses a folder that `writable` lists by another path, for example a path that goes
// through a symbolic link. `is_writable` also finds such a folder.
bool is_beneath(const Path& path, const Writable& writable) {
  for (int at = 0; at < writable.count; ++at) {
    const std::size_t size = std::strlen(writable.paths[at]);
    if (path.is_in(writable.paths[at], size) && path.size() > size) return true;
  }
  return false;
}

// Returns whether the file lies below a writable folder. If `may_be_listed`, returns true also for
// a file or folder that the list itself names.
bool is_writable(const Meant& meant, const Writable& writable, bool may_be_listed) {
  if (may_be_listed && meant.exists && is_listed(meant.status, writable)) return true;
  if (is_beneath(meant.path, writable)) return true;
  Path folder = meant.path;
  struct stat status;
  while (folder.size() > 1) {
    folder.leave();
    if (kernel::lstat(folder.c_str(), &status) == 0 && is_listed(status, writable)) return true;
  }
  return false;
}

// Returns whether a regular file still has a hard link somewhere. If the name by which the file was
// opened was removed, other links may remain, but their paths are unknown.
bool has_name(const Meant& meant) {
  return S_ISREG(meant.status.st_mode) && meant.status.st_nlink > 0;
}

enum class Verdict {
  allowed,
  fails,  // the call would fail without a wall too, so the kernel returns its usual error
  refused,
};

// A call that the kernel holds, with one of the files that the call names. A call with two paths,
// such as rename, has one `Call` for each path.
class Call {
 public:
  Call(const seccomp_notif& notification, const Watched& watched)
      : data_(notification.data),
        watched_(watched),
        caller_(static_cast<pid_t>(notification.pid)) {}

  // Returns the verdict on the call, and sets `meant` to the file that the call names.
  Verdict judge(const Writable& writable, Meant& meant) const {
    const bool is_metadata = watched_.effect == Effect::metadata;
    switch (find(meant)) {
      case Is::nowhere: return Verdict::fails;
      case Is::unknown: return is_metadata ? Verdict::refused : Verdict::allowed;
      case Is::unnamed: return is_metadata && has_name(meant) ? Verdict::refused : Verdict::allowed;
      case Is::found: break;
    }
    if (fails_anyway(meant)) return Verdict::fails;
    if (is_writable(meant, writable, may_be_listed(meant))) return Verdict::allowed;
    return is_metadata || may_be_written(meant) ? Verdict::refused : Verdict::allowed;
  }

 private:
  [[nodiscard]] unsigned long long argument(int at) const { return at < 0 ? 0 : data_.args[at]; }

  [[nodiscard]] unsigned long long flags() const {
    if (data_.nr == SYS_openat2) {
      open_how how;
      return caller_.read(argument(watched_.flags), &how, sizeof how) ? how.flags : 0;
    }
    const bool is_creat = watched_.effect == Effect::opens && watched_.flags < 0;
    return is_creat ? O_CREAT | O_WRONLY | O_TRUNC : argument(watched_.flags);
  }
  [[nodiscard]] bool has(int flag) const {
    const auto wanted = static_cast<unsigned long long>(flag);
    return (flags() & wanted) == wanted;
  }

  [[nodiscard]] bool follows() const {
    if (watched_.effect == Effect::opens) return !has(O_NOFOLLOW) && !has(O_CREAT | O_EXCL);
    if (watched_.flags < 0) return watched_.follows;
    return watched_.follows ? !has(AT_SYMLINK_NOFOLLOW) : has(AT_SYMLINK_FOLLOW);
  }

  [[nodiscard]] Is find(Meant& meant) const {
    const int folder = watched_.folder < 0 ? AT_FDCWD : static_cast<int>(argument(watched_.folder));
    if (watched_.path < 0 || argument(watched_.path) == 0) return caller_.find_open(folder, meant);
    Path path;
    if (!caller_.read_text(argument(watched_.path), path)) return Is::unknown;
    const bool is_open = path.empty() && watched_.effect != Effect::opens && has(AT_EMPTY_PATH);
    if (is_open) return caller_.find_open(folder, meant);
    return caller_.find(folder, path.c_str(), follows(), meant);
  }

  [[nodiscard]] bool fails_anyway(const Meant& meant) const {
    switch (watched_.effect) {
      case Effect::opens: return open_fails_anyway(meant);
      case Effect::makes: return meant.exists;
      case Effect::replaces: return false;
      default: return !meant.exists;
    }
  }
  // Returns true if the open call would fail even without a wall, or if it changes no file.
  [[nodiscard]] bool open_fails_anyway(const Meant& meant) const {
    if (has(O_PATH)) return true;
    if (has(O_TMPFILE)) return !meant.exists;
    if (!meant.exists) return !has(O_CREAT);
    const bool changes = (flags() & (O_ACCMODE | O_TRUNC)) != 0;
    return !changes || has(O_CREAT | O_EXCL) || S_ISDIR(meant.status.st_mode);
  }

  [[nodiscard]] bool changes_contents() const {
    return watched_.effect == Effect::opens || watched_.effect == Effect::truncates;
  }
  // Returns whether the wall allows this kind of call on a file or folder that is itself in the
  // list of writable paths. It allows changes to a file's contents and to a folder's metadata. It
  // allows no links, renames or removals, and no changes to a file's metadata.
  [[nodiscard]] bool may_be_listed(const Meant& meant) const {
    return changes_contents() ||
           (watched_.effect == Effect::metadata && S_ISDIR(meant.status.st_mode));
  }

  // Returns whether the supervisor's user has the permission that the call needs: to write the
  // file, or to write its folder if the call makes or removes a name. Without the permission, the
  // call fails even if there is no wall, so the supervisor does not count it as refused by the
  // wall.
  [[nodiscard]] bool may_be_written(const Meant& meant) const {
    Path path = meant.path;
    if (!meant.exists || !changes_contents()) path.leave();
    return kernel::access(path.c_str(), W_OK) == 0;
  }

  const seccomp_data& data_;
  const Watched& watched_;
  Caller caller_;
};

bool is_refused(const seccomp_notif& notification, const Writable& writable, Meant& meant) {
  bool is_any_refused = false;
  for (const Watched& each : kWatched) {
    if (each.call != notification.data.nr) continue;
    Meant other;
    Meant& found = is_any_refused ? other : meant;
    const Verdict verdict = Call(notification, each).judge(writable, found);
    if (verdict == Verdict::fails) return false;
    is_any_refused = is_any_refused || verdict == Verdict::refused;
  }
  return is_any_refused;
}

int receive(int listener, seccomp_notif& notification) {
  pollfd waits{listener, POLLIN, 0};
  if (poll(&waits, 1, 0) <= 0 || (waits.revents & POLLIN) == 0) return -EAGAIN;
  return ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notification) == 0 ? 0 : -errno;
}

int respond(int listener, const seccomp_notif& notification, bool is_refused) {
  seccomp_notif_resp response{};
  response.id = notification.id;
  if (is_refused) {
    response.error = -EACCES;
  } else {
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  }
  return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0 ? 0 : -errno;
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

int plimsoll_wall_answer(int listener, const char* const* writable, int count, char* text,
                         int size) {
  seccomp_notif notification{};
  if (const int error = receive(listener, notification); error != 0) return error;
  Meant meant;
  const bool is_ours = is_refused(notification, {writable, count}, meant);
  Path program;
  (void)Caller(static_cast<pid_t>(notification.pid)).find_program(program);
  // If the caller has died, its process id may now belong to another process. The paths above may
  // then come from that process, so this function does not return them.
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notification.id) != 0) return -ENOENT;
  if (const int error = respond(listener, notification, is_ours); error != 0) return error;
  if (!is_ours) return 0;
  std::snprintf(text, static_cast<std::size_t>(size), "%s\n%s", meant.path.c_str(),
                program.c_str());
  return 1;
}
