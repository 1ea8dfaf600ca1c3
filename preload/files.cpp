// Opens and creates files.
#include <sys/random.h>
#include <sys/sysmacros.h>

#include <cstdarg>
#include <cstdio>

#include "calls.h"

namespace plimsoll::scratch {

int prepare_open(int folder, const char* path, int flags, Place& place) {
  const bool is_new = (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0;
  const bool follows = (flags & O_NOFOLLOW) == 0 && !is_new;
  if (find(folder, path, follows, place) != 0) return -1;
  const bool is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  if (place.is_free) return 0;
  // Pipes and devices are opened without a copy. A folder cannot be opened for writing.
  if (place.exists && !S_ISREG(place.status.st_mode) && !is_unnamed) return 0;
  const Change change;
  if (find(folder, path, follows, place) != 0) return -1;
  if (place.exists) {
    if (is_new || place.lies == Place::Lies::copied) return 0;
    const int rights = is_unnamed                      ? W_OK | X_OK
                       : (flags & O_ACCMODE) == O_RDWR ? R_OK | W_OK
                                                       : W_OK;
    if (kernel::access(place.physical.c_str(), rights) != 0) return -1;
    return copy_up(place, (flags & O_TRUNC) == 0);
  }
  if ((flags & O_CREAT) == 0) return 0;
  if (path[std::strlen(path) - 1] == '/') return fails(EISDIR);
  Path physical;
  if (enter_copy(place, physical) != 0) return -1;
  place.physical = physical;
  return 0;
}

int open_at(int folder, const char* path, int flags, mode_t mode) {
  const bool writes = (flags & O_PATH) == 0 &&
                      ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0);
  Place place;
  if (path == nullptr || path[0] == '\0' || !is_active(!writes)) {
    return kernel::openat(folder, path, flags, mode);
  }
  if (writes) {
    if (prepare_open(folder, path, flags, place) != 0) return -1;
  } else if (find(folder, path, (flags & O_NOFOLLOW) == 0, place) != 0) {
    return -1;
  }
  return kernel::openat(AT_FDCWD, place.physical.c_str(), flags, mode);
}

namespace {

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// Converts fopen's mode to flags of open(2).
int flags_of(const char* mode) {
  const bool is_both = std::strchr(mode, '+') != nullptr;
  int flags = is_both ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  if (mode[0] == 'w') flags |= O_CREAT | O_TRUNC;
  if (mode[0] == 'a') flags |= O_CREAT | O_APPEND;
  if (std::strchr(mode, 'e') != nullptr) flags |= O_CLOEXEC;
  if (mode[0] != 'r' && std::strchr(mode, 'x') != nullptr) flags |= O_EXCL;
  return flags;
}

// Replaces fopen's `path` by the path of the real file, or of the copy in the layer if the mode
// allows writing.
// Returns false and sets errno on failure.
bool stream_path(const char*& path, const char* mode, Place& place) {
  if (path == nullptr || mode == nullptr || path[0] == '\0') return true;
  const int flags = flags_of(mode);
  if (!is_active(flags == O_RDONLY)) return true;
  const int found = flags == O_RDONLY ? find(AT_FDCWD, path, true, place)
                                      : prepare_open(AT_FDCWD, path, flags, place);
  path = place.physical.c_str();
  return found == 0;
}

// Returns a stream that owns the descriptor. On failure closes the descriptor and returns null.
FILE* stream_of(int file, const char* mode) {
  FILE* stream = file < 0 ? nullptr : fdopen(file, mode);
  if (file >= 0 && stream == nullptr) kernel::close(file);
  return stream;
}

// Returns whether fopen's mode allows writing and has no `,ccs=`. If so, this library opens the
// file itself, because libc's system call would carry no pass (pass.h), and so would wait for the
// wall's supervisor. In all other modes, libc opens the file.
bool is_plain_writer(const char* mode) {
  if (mode == nullptr || std::strchr(mode, ',') != nullptr) return false;
  return mode[0] == 'w' || mode[0] == 'a' || (mode[0] == 'r' && std::strchr(mode, '+') != nullptr);
}

// Replaces the six X before the suffix by random letters and digits, and calls `make` with the
// name. If a file with this name exists already, tries again with other random letters.
template <typename Make>
int make_named(char* pattern, int suffix, Make make) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr std::size_t kCount = 6;
  const std::size_t size = pattern == nullptr ? 0 : std::strlen(pattern);
  const std::size_t after = suffix < 0 ? size + 1 : static_cast<std::size_t>(suffix);
  if (size < kCount + after) return fails(EINVAL);
  char* name = pattern + size - after - kCount;
  if (std::strncmp(name, "XXXXXX", kCount) != 0) return fails(EINVAL);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    unsigned char random[kCount] = {};
    if (getrandom(random, sizeof random, 0) < 0) return -1;
    for (std::size_t at = 0; at < kCount; ++at) {
      name[at] = kLetters[random[at] % (sizeof kLetters - 1)];
    }
    const int made = make(pattern);
    if (made >= 0 || errno != EEXIST) return made;
  }
  return fails(EEXIST);
}

int make_temporary(char* pattern, int suffix, int flags) {
  return make_named(pattern, suffix, [flags](const char* path) {
    return open_at(AT_FDCWD, path, (flags & ~O_ACCMODE) | O_RDWR | O_CREAT | O_EXCL, 0600);
  });
}

// Creates a file in the layer's folder, and returns a descriptor of it. Removes the file's name
// immediately, so that the file vanishes when the descriptor is closed. Libc's own tmpfile would
// make the file in /tmp, whatever TMPDIR says.
int open_unnamed() {
  Path name;
  if (new_name(name) != 0) return -1;
  const int file = kernel::openat(AT_FDCWD, name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file >= 0) kernel::unlink(name.c_str());
  return file;
}

FILE* make_unnamed(const char* libc_name) {
  if (!is_active(false)) return Next<FILE*()>(libc_name)();
  return stream_of(open_unnamed(), "w+b");
}

// Sets `path` to the file in /dev/shm that libc uses for a shared memory object. Returns false if
// the object's name is invalid.
bool shared_path(const char* name, Path& path) {
  while (*name == '/') ++name;
  return *name != '\0' && std::strchr(name, '/') == nullptr && std::strlen(name) <= NAME_MAX &&
         path.set("/dev/shm") && path.enter(name);
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

STANDS_FOR(int, open, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = takes_mode(flags) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open_at(AT_FDCWD, path, flags, mode);
}
STANDS_FOR(int, openat, int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = takes_mode(flags) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open_at(folder, path, flags, mode);
}
ALSO_STANDS_FOR(int, open64, open, const char*, int, ...);
ALSO_STANDS_FOR(int, openat64, openat, int, const char*, int, ...);

STANDS_FOR(int, __open_2, const char* path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
ALSO_STANDS_FOR(int, __open64_2, __open_2, const char*, int);
STANDS_FOR(int, __openat_2, int folder, const char* path, int flags) {
  return open_at(folder, path, flags, 0);
}
ALSO_STANDS_FOR(int, __openat64_2, __openat_2, int, const char*, int);

STANDS_FOR(int, creat, const char* path, mode_t mode) {
  return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}
ALSO_STANDS_FOR(int, creat64, creat, const char*, mode_t);

STANDS_FOR(FILE*, fopen, const char* path, const char* mode) {
  static constinit Next<FILE*(const char*, const char*)> libc("fopen");
  if (is_active(false) && is_plain_writer(mode)) {
    return stream_of(open_at(AT_FDCWD, path, flags_of(mode), 0666), mode);
  }
  Place place;
  return stream_path(path, mode, place) ? libc(path, mode) : nullptr;
}
ALSO_STANDS_FOR(FILE*, fopen64, fopen, const char*, const char*);

STANDS_FOR(FILE*, freopen, const char* path, const char* mode, FILE* stream) {
  static constinit Next<FILE*(const char*, const char*, FILE*)> libc("freopen");
  Place place;
  return stream_path(path, mode, place) ? libc(path, mode, stream) : nullptr;
}
ALSO_STANDS_FOR(FILE*, freopen64, freopen, const char*, const char*, FILE*);

STANDS_FOR(int, mkstemp, char* pattern) { return make_temporary(pattern, 0, 0); }
ALSO_STANDS_FOR(int, mkstemp64, mkstemp, char*);
STANDS_FOR(int, mkostemp, char* pattern, int flags) { return make_temporary(pattern, 0, flags); }
ALSO_STANDS_FOR(int, mkostemp64, mkostemp, char*, int);
STANDS_FOR(int, mkstemps, char* pattern, int suffix) { return make_temporary(pattern, suffix, 0); }
ALSO_STANDS_FOR(int, mkstemps64, mkstemps, char*, int);
STANDS_FOR(int, mkostemps, char* pattern, int suffix, int flags) {
  return make_temporary(pattern, suffix, flags);
}
ALSO_STANDS_FOR(int, mkostemps64, mkostemps, char*, int, int);

STANDS_FOR(FILE*, tmpfile) { return make_unnamed("tmpfile"); }
ALSO_STANDS_FOR(FILE*, tmpfile64, tmpfile);

STANDS_FOR(int, shm_open, const char* name, int flags, mode_t mode) {
  Path path;
  if (!shared_path(name, path)) return fails(EINVAL);
  const bool is_new = (flags & O_CREAT) != 0 && kernel::access(path.c_str(), F_OK) != 0;
  const int file = kernel::open(path.c_str(), flags | O_NOFOLLOW, mode);
  if (file >= 0 && is_new && is_active(false)) note_shared(path.name());
  return file;
}

STANDS_FOR(char*, mkdtemp, char* pattern) {
  const int made =
      make_named(pattern, 0, [](const char* path) { return make_folder_at(AT_FDCWD, path, 0700); });
  return made == 0 ? pattern : nullptr;
}

STANDS_FOR(int, mknodat, int folder, const char* path, mode_t mode, dev_t device) {
  return make_new(folder, path, [mode, device](int in, const char* at) {
    return static_cast<int>(kernel::pass(SYS_mknodat, in, at, mode, device));
  });
}
STANDS_FOR(int, mknod, const char* path, mode_t mode, dev_t device) {
  return call_mknodat(AT_FDCWD, path, mode, device);
}
STANDS_FOR(int, __xmknod, int, const char* path, mode_t mode, dev_t* device) {
  return call_mknodat(AT_FDCWD, path, mode, *device);
}
STANDS_FOR(int, mkfifo, const char* path, mode_t mode) {
  return call_mknodat(AT_FDCWD, path, mode | S_IFIFO, 0);
}
STANDS_FOR(int, mkfifoat, int folder, const char* path, mode_t mode) {
  return call_mknodat(folder, path, mode | S_IFIFO, 0);
}

}  // extern "C"
