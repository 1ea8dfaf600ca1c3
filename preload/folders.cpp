// Makes, lists and enters folders.
#include <dirent.h>

#include <cstdlib>

#include "calls.h"

namespace plimsoll::scratch {

int make_folder_at(int folder, const char* path, mode_t mode) {
  return make_new(folder, path, [mode](int in, const char* at) {
    return static_cast<int>(kernel::pass(SYS_mkdirat, in, at, mode));
  });
}

namespace {

// Replaces the type "link" of a folder's entry by "unknown", because one of the layer's own links
// may stand for a file or a folder. The program then looks up the type.
template <typename Entry>
Entry* without_link(Entry* entry) {
  if (entry != nullptr && entry->d_type == DT_LNK && is_active(true)) entry->d_type = DT_UNKNOWN;
  return entry;
}

DIR* open_stream(int folder) {
  static constinit Next<DIR*(int)> libc("fdopendir");
  return libc(folder);
}

// If the layer has copied a real folder since the program opened it, makes the program's descriptor
// refer to the copy.
void refresh(int folder) {
  const int error = errno;
  Path seen;
  Place place;
  struct stat opened;
  if (is_active(true) && seen_path(folder, seen) == 0 &&
      find(AT_FDCWD, seen.c_str(), true, place) == 0 && !place.is_free &&
      place.lies == Place::Lies::copied &&
      kernel::status_at(folder, "", &opened, AT_EMPTY_PATH) == 0 &&
      opened.st_ino != place.status.st_ino) {
    const int flags = static_cast<int>(syscall(SYS_fcntl, folder, F_GETFD));
    const int copy = kernel::open(place.physical.c_str(), O_RDONLY | O_DIRECTORY);
    if (copy >= 0) {
      syscall(SYS_dup3, copy, folder, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
      kernel::close(copy);
    }
  }
  errno = error;
}

char* current_folder(char* buffer, std::size_t size) {
  char name[PATH_MAX];
  Path path;
  if (syscall(SYS_getcwd, name, sizeof name) < 0) return nullptr;
  if (name[0] != '/' || !path.set(name)) {
    errno = ENOENT;
    return nullptr;
  }
  to_seen(path);
  if (buffer == nullptr) {
    if (size != 0 && size <= path.size()) {
      errno = ERANGE;
      return nullptr;
    }
    buffer = static_cast<char*>(std::malloc(size != 0 ? size : path.size() + 1));
    if (buffer == nullptr) return nullptr;
  } else if (size <= path.size()) {
    errno = size == 0 ? EINVAL : ERANGE;
    return nullptr;
  }
  std::memcpy(buffer, path.c_str(), path.size() + 1);
  return buffer;
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

STANDS_FOR(int, mkdir, const char* path, mode_t mode) {
  return make_folder_at(AT_FDCWD, path, mode);
}
STANDS_FOR(int, mkdirat, int folder, const char* path, mode_t mode) {
  return make_folder_at(folder, path, mode);
}

STANDS_FOR(DIR*, opendir, const char* path) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK;
  const int folder = open_at(AT_FDCWD, path, flags, 0);
  if (folder < 0) return nullptr;
  DIR* stream = open_stream(folder);
  if (stream == nullptr) kernel::close(folder);
  return stream;
}
STANDS_FOR(DIR*, fdopendir, int folder) {
  refresh(folder);
  return open_stream(folder);
}
STANDS_FOR(dirent*, readdir, DIR* stream) {
  static constinit Next<dirent*(DIR*)> libc("readdir");
  return without_link(libc(stream));
}
ALSO_STANDS_FOR(dirent*, readdir64, readdir, DIR*);
STANDS_FOR(int, readdir_r, DIR* stream, dirent* entry, dirent** result) {
  static constinit Next<int(DIR*, dirent*, dirent**)> libc("readdir_r");
  const int error = libc(stream, entry, result);
  if (error == 0) without_link(*result);
  return error;
}
ALSO_STANDS_FOR(int, readdir64_r, readdir_r, DIR*, dirent*, dirent**);

STANDS_FOR(int, chdir, const char* path) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, true, place)) return -1;
  return static_cast<int>(syscall(SYS_chdir, path));
}

STANDS_FOR(char*, getcwd, char* buffer, std::size_t size) { return current_folder(buffer, size); }
STANDS_FOR(char*, __getcwd_chk, char* buffer, std::size_t size, std::size_t) {
  return current_folder(buffer, size);
}
STANDS_FOR(char*, get_current_dir_name) { return current_folder(nullptr, 0); }

}  // extern "C"
