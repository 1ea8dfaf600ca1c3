// Asking about files: what they are, whether they may be used, where links lead.
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <cstdlib>

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
  Path target;  // that of /proc/self/cwd, exe or fd/3
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

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

int call_stat(const char* path, struct stat* status) STANDS_FOR("stat");
int call_stat(const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, 0);
}
int call_stat64(const char*, struct stat*) STANDS_FOR("stat64") __attribute__((alias("stat")));
int call_lstat(const char* path, struct stat* status) STANDS_FOR("lstat");
int call_lstat(const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int call_lstat64(const char*, struct stat*) STANDS_FOR("lstat64") __attribute__((alias("lstat")));
int call_fstatat(int folder, const char* path, struct stat* status, int flags)
    STANDS_FOR("fstatat");
int call_fstatat(int folder, const char* path, struct stat* status, int flags) {
  return status_at(folder, path, status, flags);
}
int call_fstatat64(int, const char*, struct stat*, int) STANDS_FOR("fstatat64")
    __attribute__((alias("fstatat")));

// The names that programs have which were linked before glibc 2.33; the first argument says in
// which form the answer is wanted, and 64-bit Linux has one form.
int call_xstat(int, const char* path, struct stat* status) STANDS_FOR("__xstat");
int call_xstat(int, const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, 0);
}
int call_xstat64(int, const char*, struct stat*) STANDS_FOR("__xstat64")
    __attribute__((alias("__xstat")));
int call_lxstat(int, const char* path, struct stat* status) STANDS_FOR("__lxstat");
int call_lxstat(int, const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int call_lxstat64(int, const char*, struct stat*) STANDS_FOR("__lxstat64")
    __attribute__((alias("__lxstat")));
int call_fxstatat(int, int folder, const char* path, struct stat* status, int flags)
    STANDS_FOR("__fxstatat");
int call_fxstatat(int, int folder, const char* path, struct stat* status, int flags) {
  return status_at(folder, path, status, flags);
}
int call_fxstatat64(int, int, const char*, struct stat*, int) STANDS_FOR("__fxstatat64")
    __attribute__((alias("__fxstatat")));

int call_statx(int folder, const char* path, int flags, unsigned mask, void* status)
    STANDS_FOR("statx");
int call_statx(int folder, const char* path, int flags, unsigned mask, void* status) {
  Place place;
  if (!read_path(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, place)) return -1;
  return static_cast<int>(syscall(SYS_statx, folder, path, flags, mask, status));
}

int call_access(const char* path, int mode) STANDS_FOR("access");
int call_access(const char* path, int mode) {
  Place place;
  int folder = AT_FDCWD;
  return read_path(folder, path, true, place) ? kernel::access(path, mode) : -1;
}
int call_faccessat(int folder, const char* path, int mode, int flags) STANDS_FOR("faccessat");
int call_faccessat(int folder, const char* path, int mode, int flags) {
  static constinit Next<int(int, const char*, int, int)> libc("faccessat");
  Place place;
  if (!read_path(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, place)) return -1;
  return libc(folder, path, mode, flags);
}
int call_euidaccess(const char* path, int mode) STANDS_FOR("euidaccess");
int call_euidaccess(const char* path, int mode) {
  return call_faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}
int call_eaccess(const char*, int) STANDS_FOR("eaccess") __attribute__((alias("euidaccess")));

ssize_t call_readlink(const char* path, char* text, std::size_t size) STANDS_FOR("readlink");
ssize_t call_readlink(const char* path, char* text, std::size_t size) {
  return read_link_at(AT_FDCWD, path, text, size);
}
ssize_t call_readlinkat(int folder, const char* path, char* text, std::size_t size)
    STANDS_FOR("readlinkat");
ssize_t call_readlinkat(int folder, const char* path, char* text, std::size_t size) {
  return read_link_at(folder, path, text, size);
}
ssize_t call_readlink_chk(const char* path, char* text, std::size_t size, std::size_t)
    STANDS_FOR("__readlink_chk");
ssize_t call_readlink_chk(const char* path, char* text, std::size_t size, std::size_t) {
  return read_link_at(AT_FDCWD, path, text, size);
}
ssize_t call_readlinkat_chk(int folder, const char* path, char* text, std::size_t size, std::size_t)
    STANDS_FOR("__readlinkat_chk");
ssize_t call_readlinkat_chk(int folder, const char* path, char* text, std::size_t size,
                            std::size_t) {
  return read_link_at(folder, path, text, size);
}

char* call_realpath(const char* path, char* resolved) STANDS_FOR("realpath");
char* call_realpath(const char* path, char* resolved) { return real_path(path, resolved); }
char* call_realpath_chk(const char* path, char* resolved, std::size_t) STANDS_FOR("__realpath_chk");
char* call_realpath_chk(const char* path, char* resolved, std::size_t) {
  return real_path(path, resolved);
}
char* call_canonicalize(const char* path) STANDS_FOR("canonicalize_file_name");
char* call_canonicalize(const char* path) { return real_path(path, nullptr); }

int call_statvfs(const char* path, struct statvfs* status) STANDS_FOR("statvfs");
int call_statvfs(const char* path, struct statvfs* status) {
  return file_system("statvfs", path, status);
}
int call_statvfs64(const char*, struct statvfs*) STANDS_FOR("statvfs64")
    __attribute__((alias("statvfs")));
int call_statfs(const char* path, struct statfs* status) STANDS_FOR("statfs");
int call_statfs(const char* path, struct statfs* status) {
  return file_system("statfs", path, status);
}
int call_statfs64(const char*, struct statfs*) STANDS_FOR("statfs64")
    __attribute__((alias("statfs")));

ssize_t call_getxattr(const char* path, const char* name, void* value, std::size_t size)
    STANDS_FOR("getxattr");
ssize_t call_getxattr(const char* path, const char* name, void* value, std::size_t size) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, true, place)) return -1;
  return syscall(SYS_getxattr, path, name, value, size);
}
ssize_t call_lgetxattr(const char* path, const char* name, void* value, std::size_t size)
    STANDS_FOR("lgetxattr");
ssize_t call_lgetxattr(const char* path, const char* name, void* value, std::size_t size) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, false, place)) return -1;
  return syscall(SYS_lgetxattr, path, name, value, size);
}
ssize_t call_listxattr(const char* path, char* names, std::size_t size) STANDS_FOR("listxattr");
ssize_t call_listxattr(const char* path, char* names, std::size_t size) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, true, place)) return -1;
  return syscall(SYS_listxattr, path, names, size);
}
ssize_t call_llistxattr(const char* path, char* names, std::size_t size) STANDS_FOR("llistxattr");
ssize_t call_llistxattr(const char* path, char* names, std::size_t size) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, false, place)) return -1;
  return syscall(SYS_llistxattr, path, names, size);
}

}  // extern "C"
