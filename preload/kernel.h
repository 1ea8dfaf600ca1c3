// Makes system calls directly. Within this library, a call of libc's `open`, for example, would
// reach the library's own `open`. System calls that change files carry a secret number (pass.h), so
// that the wall lets them through.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "pass.h"

namespace plimsoll::scratch::kernel {

inline int openat(int folder, const char* path, int flags, mode_t mode = 0) {
  return static_cast<int>(pass(SYS_openat, folder, path, flags, mode));
}
inline int open(const char* path, int flags, mode_t mode = 0) {
  return openat(AT_FDCWD, path, flags | O_CLOEXEC, mode);
}
inline void close(int file) { syscall(SYS_close, file); }
inline int status_at(int folder, const char* path, struct stat* status, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, status, flags));
}
inline int lstat(const char* path, struct stat* status) {
  return status_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
inline ssize_t readlink(const char* path, char* text, std::size_t size) {
  return syscall(SYS_readlinkat, AT_FDCWD, path, text, size);
}
inline int access(const char* path, int mode) {
  return static_cast<int>(syscall(SYS_faccessat, AT_FDCWD, path, mode));
}
inline int mkdir(const char* path, mode_t mode) {
  return static_cast<int>(pass(SYS_mkdirat, AT_FDCWD, path, mode));
}
inline int unlink(const char* path) {
  return static_cast<int>(pass(SYS_unlinkat, AT_FDCWD, path, 0));
}
inline int rmdir(const char* path) {
  return static_cast<int>(pass(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
inline int rename(const char* from, const char* to, unsigned flags = 0) {
  return static_cast<int>(pass(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags));
}
inline int symlinkat(const char* target, int folder, const char* path) {
  return static_cast<int>(pass(SYS_symlinkat, target, folder, path));
}
inline int link(const char* from, const char* to) {
  return static_cast<int>(pass(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
inline int chmod(const char* path, mode_t mode) {
  return static_cast<int>(pass(SYS_fchmodat, AT_FDCWD, path, mode));
}
inline int chown(const char* path, uid_t user, gid_t group) {
  return static_cast<int>(pass(SYS_fchownat, AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW));
}
inline int utimensat(const char* path, const struct timespec* times) {
  return static_cast<int>(pass(SYS_utimensat, AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}
inline ssize_t getdents(int folder, void* entries, std::size_t size) {
  return syscall(SYS_getdents64, folder, entries, size);
}

}  // namespace plimsoll::scratch::kernel
