// Helpers for the functions that replace libc's. LD_PRELOAD makes a process find the replacements
// before libc's own functions.
#pragma once

#include <dlfcn.h>

#include <atomic>

#include "kernel.h"
#include "layer.h"

// Begins the replacement of libc's function `name`. The replacement has another name in C++, so
// that it cannot conflict with libc's own declaration.
#define STANDS_FOR(Result, name, ...)                 \
  Result call_##name(__VA_ARGS__) EXPORTED_AS(#name); \
  Result call_##name(__VA_ARGS__)
// Makes the replacement of libc's `other` replace libc's `name` too.
#define ALSO_STANDS_FOR(Result, name, other, ...) \
  Result call_##name(__VA_ARGS__) EXPORTED_AS(#name) __attribute__((alias(#other)))
#define EXPORTED_AS(name) __asm__(name) __attribute__((visibility("default")))

namespace plimsoll::scratch {

// A libc function, which is looked up by name at the first call. Two threads may look it up at the
// same time, and both find the same function.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}

  template <typename... Arguments>
  [[gnu::always_inline]] auto operator()(Arguments... arguments) {
    Function* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) found = look_up();
    return found(arguments...);
  }

 private:
  Function* look_up() {
    auto* found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
    found_.store(found, std::memory_order_relaxed);
    return found;
  }

  const char* name_;
  std::atomic<Function*> found_{nullptr};
};

inline int fails(int error) {
  errno = error;
  return -1;
}

// Looks up a path for a call that only reads. Sets `folder` and `path` to the file's place on the
// disk; the caller passes both to the system call. Returns false and sets errno on failure.
[[nodiscard]] inline bool read_path(int& folder, const char*& path, bool follows, Place& place) {
  if (path == nullptr || path[0] == '\0' || !is_active(true)) return true;
  if (find(folder, path, follows, place) != 0) return false;
  folder = AT_FDCWD;
  path = place.physical.c_str();
  return true;
}

// Prepares a call that opens a file with these flags of open(2) and may write to it: copies the
// file if necessary. Sets `place` to the file that the call has to open.
[[nodiscard]] int prepare_open(int folder, const char* path, int flags, Place& place);
[[nodiscard]] int open_at(int folder, const char* path, int flags, mode_t mode);
[[nodiscard]] int make_folder_at(int folder, const char* path, mode_t mode);

// Makes a call that creates a file, folder or link at a new path. The new entry goes into the
// layer's copy of its folder, unless the path is free (`Place::is_free`).
template <typename Call>
[[nodiscard]] int make_new(int folder, const char* path, Call call) {
  if (path == nullptr || !is_active(false)) return call(folder, path);
  const Change change;
  Place place;
  if (find(folder, path, false, place) != 0) return -1;
  if (place.is_free) return call(AT_FDCWD, place.physical.c_str());
  if (place.exists) return fails(EEXIST);
  Path physical;
  if (enter_copy(place, physical) != 0) return -1;
  return call(AT_FDCWD, physical.c_str());
}

// Makes a call that changes an existing file. `call` gets three arguments: a function that makes
// the system call, the folder, and the path. If `is_owners`, only root and the file's owner may
// make the call. A free path (`Place::is_free`) may lead to a real file through a link. So for a
// free path, the system call carries no pass (pass.h), and the wall's supervisor decides.
template <typename Call>
[[nodiscard]] int modify(int folder, const char* path, bool follows, bool is_owners, Call call) {
  constexpr auto kAsked = [](auto... values) { return syscall(values..., 0L); };
  constexpr auto kPassed = [](auto... values) { return kernel::pass(values...); };
  if (path == nullptr || path[0] == '\0' || !is_active(false)) return call(kAsked, folder, path);
  const Change change;
  Place place;
  if (find(folder, path, follows, place) != 0) return -1;
  if (place.is_free) return call(kAsked, AT_FDCWD, place.physical.c_str());
  if (!place.exists) return fails(ENOENT);
  const uid_t user = geteuid();
  if (is_owners && user != 0 && place.status.st_uid != user) return fails(EPERM);
  if (copy_up(place, true) != 0) return -1;
  return call(kPassed, AT_FDCWD, place.physical.c_str());
}

}  // namespace plimsoll::scratch
