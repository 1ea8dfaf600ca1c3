// Answers questions about files: their status, permissions and links.
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "calls.h"

namespace plimsoll::scratch {
namespace {

int status_at(int folder, const char* path, struct stat* status, int flags) {
  Place place;
  if (!read_path(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, place)) return -1;
  return kernel::status_at(folder, path, status, flags);
}

ssize_t read_link_at(int folder, const char* path, char* text, std::size_t size) {
  Place place;
  const bool is_given = path != nullptr;
  if (!read_path(folder, path, false, place)) return -1;
  const ssize_t found = syscall(SYS_readlinkat, folder, path, text, size);
  if (found <= 0 || !is_given || !place.is_free) return found;
  Path target;  // the target of a link such as /proc/self/cwd, exe or fd/3
  if (!target.append(text, static_cast<std::size_t>(found))) return found;
  to_seen(target);
  std::memcpy(text, target.c_str(), target.size());
  return static_cast<ssize_t>(target.size());
}

char* real_path(const char* path, char* resolved) {
  static constinit Next<char*(const char*, char*)> libc("realpath");
  if (path == nullptr || path[0] == '\0' || !is_active(true)) return libc(path, resolved);
  Place place;
  if (find(AT_FDCWD, path, true, place) != 0) return nullptr;
  Path found = place.path;
  if (place.is_free) {
    char buffer[PATH_MAX];
    if (libc(place.physical.c_str(), buffer) == nullptr || !found.set(buffer)) return nullptr;
    to_seen(found);
  } else if (!place.exists) {
    errno = ENOENT;
    return nullptr;
  }
  if (resolved == nullptr) return strdup(found.c_str());
  std::memcpy(resolved, found.c_str(), found.size() + 1);
  return resolved;
}

template <typename Status>
int file_system(const char* name, const char* path, Status* status) {
  Next<int(const char*, Status*)> libc(name);
  Place place;
  int folder = AT_FDCWD;
  return read_path(folder, path, true, place) ? libc(path, status) : -1;
}

// Makes the system call `call`, which reads extended attributes. Passes it the file's path on the
// disk.
template <typename... Rest>
ssize_t read_attributes(long call, const char* path, bool follows, Rest... rest) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, follows, place)) return -1;
  return syscall(call, path, rest...);
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

STANDS_FOR(int, stat, const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, 0);
}
ALSO_STANDS_FOR(int, stat64, stat, const char*, struct stat*);
STANDS_FOR(int, lstat, const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
ALSO_STANDS_FOR(int, lstat64, lstat, const char*, struct stat*);
STANDS_FOR(int, fstatat, int folder, const char* path, struct stat* status, int flags) {
  return status_at(folder, path, status, flags);
}
ALSO_STANDS_FOR(int, fstatat64, fstatat, int, const char*, struct stat*, int);

// Programs that were linked with a glibc older than 2.33 use these names. The first argument
// selects the form of the result; 64-bit Linux has one form.
STANDS_FOR(int, __xstat, int, const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, 0);
}
ALSO_STANDS_FOR(int, __xstat64, __xstat, int, const char*, struct stat*);
STANDS_FOR(int, __lxstat, int, const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
ALSO_STANDS_FOR(int, __lxstat64, __lxstat, int, const char*, struct stat*);
STANDS_FOR(int, __fxstatat, int, int folder, const char* path, struct stat* status, int flags) {
  return status_at(folder, path, status, flags);
}
ALSO_STANDS_FOR(int, __fxstatat64, __fxstatat, int, int, const char*, struct stat*, int);

STANDS_FOR(int, statx, int folder, const char* path, int flags, unsigned mask, void* status) {
  Place place;
  if (!read_path(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, place)) return -1;
  return static_cast<int>(syscall(SYS_statx, folder, path, flags, mask, status));
}

STANDS_FOR(int, access, const char* path, int mode) {
  Place place;
  int folder = AT_FDCWD;
  return read_path(folder, path, true, place) ? kernel::access(path, mode) : -1;
}
STANDS_FOR(int, faccessat, int folder, const char* path, int mode, int flags) {
  static constinit Next<int(int, const char*, int, int)> libc("faccessat");
  Place place;
  if (!read_path(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, place)) return -1;
  return libc(folder, path, mode, flags);
}
STANDS_FOR(int, euidaccess, const char* path, int mode) {
  return call_faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}
ALSO_STANDS_FOR(int, eaccess, euidaccess, const char*, int);

STANDS_FOR(ssize_t, readlink, const char* path, char* text, std::size_t size) {
  return read_link_at(AT_FDCWD, path, text, size);
}
STANDS_FOR(ssize_t, readlinkat, int folder, const char* path, char* text, std::size_t size) {
  return read_link_at(folder, path, text, size);
}
STANDS_FOR(ssize_t, __readlink_chk, const char* path, char* text, std::size_t size, std::size_t) {
  return read_link_at(AT_FDCWD, path, text, size);
}
STANDS_FOR(ssize_t, __readlinkat_chk, int folder, const char* path, char* text, std::size_t size,
           std::size_t) {
  return read_link_at(folder, path, text, size);
}

STANDS_FOR(char*, realpath, const char* path, char* resolved) { return real_path(path, resolved); }
STANDS_FOR(char*, __realpath_chk, const char* path, char* resolved, std::size_t) {
  return real_path(path, resolved);
}
STANDS_FOR(char*, canonicalize_file_name, const char* path) { return real_path(path, nullptr); }

STANDS_FOR(int, statvfs, const char* path, struct statvfs* status) {
  return file_system("statvfs", path, status);
}
ALSO_STANDS_FOR(int, statvfs64, statvfs, const char*, struct statvfs*);
STANDS_FOR(int, statfs, const char* path, struct statfs* status) {
  return file_system("statfs", path, status);
}
ALSO_STANDS_FOR(int, statfs64, statfs, const char*, struct statfs*);

STANDS_FOR(ssize_t, getxattr, const char* path, const char* name, void* value, std::size_t size) {
  return read_attributes(SYS_getxattr, path, true, name, value, size);
}
STANDS_FOR(ssize_t, lgetxattr, const char* path, const char* name, void* value, std::size_t size) {
  return read_attributes(SYS_lgetxattr, path, false, name, value, size);
}
STANDS_FOR(ssize_t, listxattr, const char* path, char* names, std::size_t size) {
  return read_attributes(SYS_listxattr, path, true, names, size);
}
STANDS_FOR(ssize_t, llistxattr, const char* path, char* names, std::size_t size) {
  return read_attributes(SYS_llistxattr, path, false, names, size);
}

}  // extern "C"
