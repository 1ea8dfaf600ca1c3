#include "plimsoll/allocator/host/backup_store.h"

#ifndef _WIN32
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>
#endif

#include <cerrno>
#include <cstring>

namespace plimsoll {

#ifdef _WIN32

// On Windows the constructor throws, so the other functions are never called.
BackupFile::BackupFile(int) : file_(-1) { throw BackupError("a backup in a file needs Linux"); }
BackupFile::~BackupFile() = default;
void BackupFile::reserve(Bytes) {}
void BackupFile::check_room(Bytes) {}
void BackupFile::write(Bytes, Address, Bytes) {}
void BackupFile::read(Bytes, Address, Bytes) {}

#else

namespace {

[[noreturn]] void fail(const char* what, int error) {
  throw BackupError(std::string("cannot ") + what + " the backup: " + std::strerror(error));
}

// Calls transfer(position, size) until all bytes are transferred. A call may transfer only a part;
// it returns how many bytes it transferred.
template <typename Transfer>
void transfer_all(const char* what, Bytes size, Transfer transfer) {
  for (Bytes done = 0; done < size;) {
    const ssize_t part = transfer(done, size - done);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) fail(what, errno);
    if (part == 0) fail(what, EIO);  // another program has shortened the file
    done += static_cast<Bytes>(part);
  }
}

}  // namespace

BackupFile::BackupFile(int descriptor) : file_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
  if (file_ < 0) fail("open", errno);
}

BackupFile::~BackupFile() { ::close(file_); }

void BackupFile::reserve(Bytes size) {
  // Some file systems cannot reserve room in advance (EOPNOTSUPP); if the disk is full, the later
  // write fails.
#ifdef __linux__
  int result = 0;
  do {
    result = ::fallocate(file_, 0, 0, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP) fail("write", errno);
#else
  static_cast<void>(size);
#endif
}

void BackupFile::check_room(Bytes size) {
  struct statvfs found{};
  if (::fstatvfs(file_, &found) != 0) fail("write", errno);
  if (static_cast<Bytes>(found.f_bavail) * found.f_frsize < size) fail("write", ENOSPC);
  // Makes a sparse file of this size. This fails if the process may not write files so large
  // (RLIMIT_FSIZE).
  if (::ftruncate(file_, static_cast<off_t>(size)) != 0) fail("write", errno);
}

void BackupFile::write(Bytes offset, Address from, Bytes size) {
  const auto* const data = reinterpret_cast<const char*>(from);
  transfer_all("write", size, [&](Bytes done, Bytes left) {
    return ::pwrite(file_, data + done, left, static_cast<off_t>(offset + done));
  });
}

void BackupFile::read(Bytes offset, Address to, Bytes size) {
  auto* const data = reinterpret_cast<char*>(to);
  transfer_all("read", size, [&](Bytes done, Bytes left) {
    return ::pread(file_, data + done, left, static_cast<off_t>(offset + done));
  });
}

#endif

}  // namespace plimsoll
