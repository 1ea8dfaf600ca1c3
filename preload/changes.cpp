// Changes existing files: names, owners, permissions, times, lengths.
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

#include <cstdio>

#include "calls.h"

namespace plimsoll::scratch {
namespace {

using Lies = Place::Lies;

bool is_folder(const Place& place) { return S_ISDIR(place.status.st_mode); }

// Returns whether a path ends in . or .. (the kernel neither moves nor removes a folder by such a
// path).
bool ends_in_dots(const char* path) {
  std::size_t size = std::strlen(path);
  while (size > 0 && path[size - 1] == '/') --size;
  std::size_t dots = 0;
  while (dots < size && path[size - 1 - dots] == '.') ++dots;
  return (dots == 1 || dots == 2) && (dots == size || path[size - 1 - dots] == '/');
}

// Returns whether the user may remove an entry. In a folder with the sticky bit, only the owner of
// the entry or of the folder may.
bool may_remove(const Place& place) {
  const uid_t user = geteuid();
  if (user == 0 || place.status.st_uid == user) return true;
  Path parent = place.path;
  parent.leave();
  struct stat folder;
  return kernel::lstat(parent.c_str(), &folder) != 0 || (folder.st_mode & S_ISVTX) == 0 ||
         folder.st_uid == user;
}

// Removes an existing entry from the copy of its folder. The caller has checked that the entry is
// not a folder with entries.
int remove_from_copy(Place& place, const Path& physical) {
  if (!is_folder(place) || place.lies == Lies::real) return kernel::unlink(physical.c_str());
  if (place.lies == Lies::bridge && copy_up(place, true) != 0) return -1;
  return kernel::rmdir(physical.c_str());
}

// Returns whether a file is missing because the whole layer was deleted. Some processes, such as
// PyTorch's shared memory manager, outlive the program, and remove their own files after its end.
bool went_with_layer(const Path& path) {
  return path.is_in(top_folder()) && kernel::access(top_folder().c_str(), F_OK) != 0;
}

int remove_at(int folder, const char* path, int flags) {
  const bool wants_folder = (flags & AT_REMOVEDIR) != 0;
  if (path == nullptr || !is_active(false)) {
    return static_cast<int>(kernel::pass(SYS_unlinkat, folder, path, flags));
  }
  const Change change;
  Place place;
  if (find(folder, path, false, place) != 0) return -1;
  if (place.is_free) {
    const long result = kernel::pass(SYS_unlinkat, AT_FDCWD, place.physical.c_str(), flags);
    return result != 0 && errno == ENOENT && went_with_layer(place.path) ? 0
                                                                         : static_cast<int>(result);
  }
  if (!place.exists) return fails(ENOENT);
  if (wants_folder && ends_in_dots(path)) return fails(ENOTEMPTY);
  if (wants_folder != is_folder(place)) return fails(wants_folder ? ENOTDIR : EISDIR);
  if (place.path.size() == 1) return fails(EBUSY);
  if (!may_remove(place)) return fails(EPERM);
  if (wants_folder && has_entries(place)) return fails(ENOTEMPTY);
  Path physical;
  if (enter_copy(place, physical) != 0) return -1;
  if (remove_from_copy(place, physical) != 0) return -1;
  note_removed(place.path);
  return 0;
}

// Sets `exists` and `status` of a free place (one that the layer leaves to the kernel), because
// `find` does not set them.
void look_at_free(Place& place) {
  if (!place.is_free) return;
  place.exists = kernel::lstat(place.physical.c_str(), &place.status) == 0;
}

// Makes the checks that the kernel makes for a rename. Does not check the permissions on free
// places, because the kernel itself will check them.
int check_rename(const Place& from, const Place& to, unsigned flags) {
  if (!from.exists) return fails(ENOENT);
  if (to.path.is_in(from.path) && to.path.size() > from.path.size()) return fails(EINVAL);
  if (from.path.is_in(to.path) && to.path.size() < from.path.size()) {
    return fails((flags & RENAME_EXCHANGE) != 0 ? EINVAL : ENOTEMPTY);
  }
  if ((flags & RENAME_NOREPLACE) != 0 && to.exists) return fails(EEXIST);
  if ((flags & RENAME_EXCHANGE) != 0) return to.exists ? 0 : fails(ENOENT);
  if (!from.is_free && !may_remove(from)) return fails(EPERM);
  if (!to.exists || std::strcmp(from.path.c_str(), to.path.c_str()) == 0) return 0;
  if (!to.is_free && !may_remove(to)) return fails(EPERM);
  if (is_folder(from) != is_folder(to)) return fails(is_folder(from) ? ENOTDIR : EISDIR);
  return is_folder(to) && has_entries(to) ? fails(ENOTEMPTY) : 0;
}

// Prepares a file or folder to be moved or linked. Makes a copy of its parent folder, and sets
// `physical` to the path of the file or folder in that copy.
int prepare_source(Place& from, bool stays_in_layer, Path& physical) {
  if (!stays_in_layer) {  // `from` may be a link of the layer, which is invalid outside the layer
    if (is_folder(from)) return fails(EXDEV);
    if (copy_up(from, true) != 0) return -1;
  }
  if (enter_copy(from, physical) != 0) return -1;
  return is_folder(from) && from.lies != Lies::real ? copy_bridges(from) : 0;
}

int rename_at(int from_folder, const char* from_path, int to_folder, const char* to_path,
              unsigned flags) {
  if (from_path == nullptr || to_path == nullptr || !is_active(false)) {
    return static_cast<int>(
        kernel::pass(SYS_renameat2, from_folder, from_path, to_folder, to_path, flags));
  }
  const Change change;
  Place from;
  Place to;
  if (find(from_folder, from_path, false, from) != 0) return -1;
  if (find(to_folder, to_path, false, to) != 0) return -1;
  if (from.is_free && to.is_free) {
    return kernel::rename(from.physical.c_str(), to.physical.c_str(), flags);
  }
  look_at_free(from);
  look_at_free(to);
  if (ends_in_dots(from_path) || ends_in_dots(to_path)) return fails(EBUSY);
  if (check_rename(from, to, flags) != 0) return -1;
  if (std::strcmp(from.path.c_str(), to.path.c_str()) == 0) return 0;
  Path from_physical = from.physical;
  Path to_physical = to.physical;
  if (!from.is_free && prepare_source(from, !to.is_free, from_physical) != 0) return -1;
  if ((flags & RENAME_EXCHANGE) != 0) {
    if (!to.is_free && prepare_source(to, !from.is_free, to_physical) != 0) return -1;
  } else if (!to.is_free) {
    if (enter_copy(to, to_physical) != 0) return -1;
    if (to.exists && is_folder(to) && remove_from_copy(to, to_physical) != 0) return -1;
  }
  if (kernel::rename(from_physical.c_str(), to_physical.c_str(), flags) != 0) return -1;
  if (!from.is_free) note_removed(from.path);
  return 0;
}

int link_at(int from_folder, const char* from_path, int to_folder, const char* to_path, int flags) {
  if (from_path == nullptr || to_path == nullptr || !is_active(false)) {
    return static_cast<int>(
        kernel::pass(SYS_linkat, from_folder, from_path, to_folder, to_path, flags));
  }
  const Change change;
  Place from;
  Place to;
  const bool is_open = from_path[0] == '\0' && (flags & AT_EMPTY_PATH) != 0;
  if (!is_open) {
    if (find(from_folder, from_path, (flags & AT_SYMLINK_FOLLOW) != 0, from) != 0) return -1;
    if (!from.is_free && !from.exists) return fails(ENOENT);
  }
  if (find(to_folder, to_path, false, to) != 0) return -1;
  Path physical = to.physical;
  if (!to.is_free) {
    if (to.exists) return fails(EEXIST);
    if (!is_open && !from.is_free && is_folder(from)) return fails(EPERM);
    if (enter_copy(to, physical) != 0) return -1;
  }
  if (!is_open) {
    if (!from.is_free && copy_up(from, true) != 0) return -1;
    from_folder = AT_FDCWD;
    from_path = from.physical.c_str();
  }
  return static_cast<int>(
      kernel::pass(SYS_linkat, from_folder, from_path, AT_FDCWD, physical.c_str(), flags));
}

// Returns whether a descriptor is open for reading only, and sets `path` to the file's path. Such a
// descriptor may refer to a real file. A descriptor that is open for writing refers to a copy in
// the layer, or the process inherited it.
bool is_read_only(int file, Path& path) {
  if (!is_active(false)) return false;
  const int error = errno;
  const long flags = syscall(SYS_fcntl, file, F_GETFL);
  const bool found = flags >= 0 && (flags & O_ACCMODE) == O_RDONLY && (flags & O_PATH) == 0 &&
                     seen_path(file, path) == 0;
  errno = error;
  return found;
}

int change_mode(int folder, const char* path, mode_t mode) {
  return modify(folder, path, true, true, [mode](auto make, int in, const char* at) {
    return static_cast<int>(make(SYS_fchmodat, in, at, mode));
  });
}

int change_owner(int folder, const char* path, uid_t user, gid_t group, int flags) {
  const bool follows = (flags & AT_SYMLINK_NOFOLLOW) == 0;
  return modify(folder, path, follows, true, [=](auto make, int in, const char* at) {
    return static_cast<int>(make(SYS_fchownat, in, at, user, group, flags));
  });
}

int change_times(int folder, const char* path, const timespec* times, int flags) {
  const bool follows = (flags & AT_SYMLINK_NOFOLLOW) == 0;
  return modify(folder, path, follows, times != nullptr, [=](auto make, int in, const char* at) {
    return static_cast<int>(make(SYS_utimensat, in, at, times, flags));
  });
}

int change_times(int folder, const char* path, const timeval* times, int flags) {
  if (times == nullptr) return change_times(folder, path, static_cast<timespec*>(nullptr), flags);
  const timespec exact[] = {{times[0].tv_sec, times[0].tv_usec * 1000},
                            {times[1].tv_sec, times[1].tv_usec * 1000}};
  return change_times(folder, path, exact, flags);
}

template <typename... Rest>
int change_attributes(long call, const char* path, bool follows, Rest... rest) {
  return modify(AT_FDCWD, path, follows, false, [=](auto make, int, const char* at) {
    return static_cast<int>(make(call, at, rest...));
  });
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

STANDS_FOR(int, unlink, const char* path) { return remove_at(AT_FDCWD, path, 0); }
STANDS_FOR(int, unlinkat, int folder, const char* path, int flags) {
  return remove_at(folder, path, flags);
}
STANDS_FOR(int, rmdir, const char* path) { return remove_at(AT_FDCWD, path, AT_REMOVEDIR); }
STANDS_FOR(int, remove, const char* path) {
  const int error = errno;
  if (remove_at(AT_FDCWD, path, 0) == 0) return 0;
  if (errno != EISDIR) return -1;
  errno = error;
  return remove_at(AT_FDCWD, path, AT_REMOVEDIR);
}

STANDS_FOR(int, rename, const char* from, const char* to) {
  return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}
STANDS_FOR(int, renameat, int from_folder, const char* from, int to_folder, const char* to) {
  return rename_at(from_folder, from, to_folder, to, 0);
}
STANDS_FOR(int, renameat2, int from_folder, const char* from, int to_folder, const char* to,
           unsigned flags) {
  return rename_at(from_folder, from, to_folder, to, flags);
}

STANDS_FOR(int, link, const char* from, const char* to) {
  return link_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}
STANDS_FOR(int, linkat, int from_folder, const char* from, int to_folder, const char* to,
           int flags) {
  return link_at(from_folder, from, to_folder, to, flags);
}
STANDS_FOR(int, symlinkat, const char* target, int folder, const char* path) {
  return make_new(folder, path,
                  [target](int in, const char* at) { return kernel::symlinkat(target, in, at); });
}
STANDS_FOR(int, symlink, const char* target, const char* path) {
  return call_symlinkat(target, AT_FDCWD, path);
}

STANDS_FOR(int, chmod, const char* path, mode_t mode) { return change_mode(AT_FDCWD, path, mode); }
STANDS_FOR(int, fchmodat, int folder, const char* path, mode_t mode, int flags) {
  if ((flags & AT_SYMLINK_NOFOLLOW) != 0) {
    Place place;
    int in = folder;
    const char* at = path;
    struct stat status;
    if (!read_path(in, at, false, place) || kernel::status_at(in, at, &status, flags) != 0)
      return -1;
    if (S_ISLNK(status.st_mode)) return fails(EOPNOTSUPP);
  }
  return change_mode(folder, path, mode);
}
STANDS_FOR(int, fchmod, int file, mode_t mode) {
  Path path;
  if (is_read_only(file, path)) return change_mode(AT_FDCWD, path.c_str(), mode);
  return static_cast<int>(syscall(SYS_fchmod, file, mode));
}

STANDS_FOR(int, chown, const char* path, uid_t user, gid_t group) {
  return change_owner(AT_FDCWD, path, user, group, 0);
}
STANDS_FOR(int, lchown, const char* path, uid_t user, gid_t group) {
  return change_owner(AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW);
}
STANDS_FOR(int, fchownat, int folder, const char* path, uid_t user, gid_t group, int flags) {
  return change_owner(folder, path, user, group, flags);
}
STANDS_FOR(int, fchown, int file, uid_t user, gid_t group) {
  Path path;
  if (is_read_only(file, path)) return change_owner(AT_FDCWD, path.c_str(), user, group, 0);
  return static_cast<int>(syscall(SYS_fchown, file, user, group));
}

STANDS_FOR(int, futimens, int file, const timespec* times) {
  Path path;
  if (is_read_only(file, path)) return change_times(AT_FDCWD, path.c_str(), times, 0);
  return static_cast<int>(syscall(SYS_utimensat, file, nullptr, times, 0));
}
STANDS_FOR(int, utimensat, int folder, const char* path, const timespec* times, int flags) {
  if (path == nullptr) return call_futimens(folder, times);
  return change_times(folder, path, times, flags);
}
STANDS_FOR(int, utimes, const char* path, const timeval* times) {
  return change_times(AT_FDCWD, path, times, 0);
}
STANDS_FOR(int, lutimes, const char* path, const timeval* times) {
  return change_times(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}
STANDS_FOR(int, futimesat, int folder, const char* path, const timeval* times) {
  return change_times(folder, path, times, 0);
}
STANDS_FOR(int, futimes, int file, const timeval* times) {
  if (times == nullptr) return call_futimens(file, nullptr);
  const timespec exact[] = {{times[0].tv_sec, times[0].tv_usec * 1000},
                            {times[1].tv_sec, times[1].tv_usec * 1000}};
  return call_futimens(file, exact);
}
STANDS_FOR(int, utime, const char* path, const utimbuf* times) {
  if (times == nullptr) return call_utimes(path, nullptr);
  const timeval exact[] = {{times->actime, 0}, {times->modtime, 0}};
  return call_utimes(path, exact);
}

STANDS_FOR(int, truncate, const char* path, off_t size) {
  Place place;
  if (path != nullptr && path[0] != '\0' && is_active(false)) {
    const int flags = O_WRONLY | (size == 0 ? O_TRUNC : 0);
    if (prepare_open(AT_FDCWD, path, flags, place) != 0) return -1;
    path = place.physical.c_str();
  }
  return static_cast<int>(kernel::pass(SYS_truncate, path, size));
}
ALSO_STANDS_FOR(int, truncate64, truncate, const char*, off_t);

STANDS_FOR(int, setxattr, const char* path, const char* name, const void* value, std::size_t size,
           int flags) {
  return change_attributes(SYS_setxattr, path, true, name, value, size, flags);
}
STANDS_FOR(int, lsetxattr, const char* path, const char* name, const void* value, std::size_t size,
           int flags) {
  return change_attributes(SYS_lsetxattr, path, false, name, value, size, flags);
}
STANDS_FOR(int, fsetxattr, int file, const char* name, const void* value, std::size_t size,
           int flags) {
  Path path;
  if (is_read_only(file, path)) return call_setxattr(path.c_str(), name, value, size, flags);
  return static_cast<int>(syscall(SYS_fsetxattr, file, name, value, size, flags));
}
STANDS_FOR(int, removexattr, const char* path, const char* name) {
  return change_attributes(SYS_removexattr, path, true, name);
}
STANDS_FOR(int, lremovexattr, const char* path, const char* name) {
  return change_attributes(SYS_lremovexattr, path, false, name);
}
STANDS_FOR(int, fremovexattr, int file, const char* name) {
  Path path;
  if (is_read_only(file, path)) return call_removexattr(path.c_str(), name);
  return static_cast<int>(syscall(SYS_fremovexattr, file, name));
}

}  // extern "C"
