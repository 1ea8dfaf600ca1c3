// Starts programs, loads libraries, and binds and connects Unix sockets that have a path. Children
// see the layer too, even if a program gives its child an environment without the layer's
// variables.
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdio>
#include <cstdlib>

#include "calls.h"

extern char** environ;

namespace plimsoll::scratch {
namespace {

constexpr char kPreload[] = "LD_PRELOAD=";
constexpr char kFolder[] = "PLIMSOLL_SCRATCH=";

// Copies of the layer's two environment variables from this process's start, because the program
// may change its environment later.
char preload[4 * PATH_MAX];
char folder_variable[2 * PATH_MAX];

__attribute__((constructor(102))) void remember() {
  const char* libraries = std::getenv("LD_PRELOAD");
  if (libraries == nullptr || !is_active(false)) return;
  if (std::strlen(libraries) >= sizeof preload - sizeof kPreload) return;
  std::snprintf(preload, sizeof preload, "%s%s", kPreload, libraries);
  std::snprintf(folder_variable, sizeof folder_variable, "%s%s", kFolder, given_folders().c_str());
}

bool begins_with(const char* text, const char* start) {
  return std::strncmp(text, start, std::strlen(start)) == 0;
}

std::size_t count(char* const* entries) {
  std::size_t size = 0;
  while (entries != nullptr && entries[size] != nullptr) ++size;
  return size;
}

bool has_layer(char* const* environment) {
  bool has_folder = false;
  bool has_preload = false;
  for (std::size_t at = 0; at < count(environment); ++at) {
    has_folder = has_folder || std::strcmp(environment[at], folder_variable) == 0;
    has_preload = has_preload || (begins_with(environment[at], kPreload) &&
                                  std::strstr(environment[at], "plimsoll_scratch") != nullptr);
  }
  return (has_folder && has_preload) || preload[0] == '\0';
}

// Copies the environment to `result`, and sets the layer's two variables in the copy. `result` has
// room for two entries more than `environment` has.
void add_layer(char* const* environment, char** result) {
  std::size_t size = 0;
  for (std::size_t at = 0; at < count(environment); ++at) {
    char* entry = environment[at];
    if (!begins_with(entry, kPreload) && !begins_with(entry, kFolder)) result[size++] = entry;
  }
  result[size++] = preload;
  result[size++] = folder_variable;
  result[size] = nullptr;
}

template <typename Call>
int with_layer(char* const* environment, Call call) {
  if (!is_active(false) || has_layer(environment)) return call(environment);
  auto** more = static_cast<char**>(__builtin_alloca((count(environment) + 3) * sizeof(char*)));
  add_layer(environment, more);
  return call(more);
}

// Returns where a program or library lies on the disk; null if the lookup of `path` fails. Returns
// a name without a slash as it is, because libc searches for it in several folders.
const char* file_of(const char* path, Place& place) {
  if (path == nullptr || std::strchr(path, '/') == nullptr) return path;
  int folder = AT_FDCWD;
  return read_path(folder, path, true, place) ? path : nullptr;
}

int run(const char* path, char* const* arguments, char* const* environment) {
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, true, place)) return -1;
  return with_layer(environment, [&](char* const* given) {
    return static_cast<int>(syscall(SYS_execve, path, arguments, given));
  });
}

int run_named(const char* name, char* const* arguments, char* const* environment) {
  static constinit Next<int(const char*, char* const*, char* const*)> libc("execvpe");
  Place place;
  const char* file = file_of(name, place);
  if (file == nullptr && name != nullptr) return -1;
  return with_layer(environment, [&](char* const* given) { return libc(file, arguments, given); });
}

// Returns a library's path on the disk. The text stays valid until the same thread calls this
// function again. The thread-local variable is a pointer and not a whole path, because a supervisor
// loads this library late, when the loader has few bytes left for thread-local variables.
[[gnu::noinline]] const char* library_path(const char* path) {
  thread_local char* kept = nullptr;
  Place place;
  if (!is_active(true) || find(AT_FDCWD, path, true, place) != 0) return path;
  std::free(kept);
  kept = strdup(place.physical.c_str());
  return kept == nullptr ? path : kept;
}

// The socket address that the layer uses in place of the program's address. The layer's address
// holds the path at which the socket lies on the disk. If that path is too long for an address,
// it names the path's folder as /proc/self/fd/N.
class Address {
 public:
  Address() = default;
  Address(const Address&) = delete;
  Address& operator=(const Address&) = delete;
  ~Address() {
    if (folder_ >= 0) kernel::close(folder_);
  }

  [[nodiscard]] bool set(const char* path) {
    address_.sun_family = AF_UNIX;
    if (std::strlen(path) < sizeof address_.sun_path) {
      std::strcpy(address_.sun_path, path);
      return true;
    }
    Path parent;
    if (!parent.set(path)) return false;
    parent.leave();
    folder_ = kernel::open(parent.c_str(), O_PATH | O_DIRECTORY);
    const char* name = std::strrchr(path, '/') + 1;
    const int size = std::snprintf(address_.sun_path, sizeof address_.sun_path,
                                   "/proc/self/fd/%d/%s", folder_, name);
    return folder_ >= 0 && static_cast<std::size_t>(size) < sizeof address_.sun_path;
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t kSize = sizeof(sockaddr_un);

 private:
  sockaddr_un address_{};
  int folder_ = -1;
};

// Copies the path from a socket's address. Returns false if the address has none.
bool socket_path(const sockaddr* address, socklen_t size, char (&path)[sizeof(sockaddr_un) + 1]) {
  constexpr std::size_t kStart = offsetof(sockaddr_un, sun_path);
  if (address == nullptr || size <= kStart || size > sizeof(sockaddr_un) ||
      address->sa_family != AF_UNIX) {
    return false;
  }
  std::memcpy(path, reinterpret_cast<const char*>(address) + kStart, size - kStart);
  path[size - kStart] = '\0';
  return path[0] != '\0';
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

// Returns 1 in a process whose calls go through the layer, and 0 in any other.
STANDS_FOR(int, plimsoll_scratch_is_active) { return is_active(false) ? 1 : 0; }

STANDS_FOR(int, execve, const char* path, char* const* arguments, char* const* environment) {
  return run(path, arguments, environment);
}
STANDS_FOR(int, execv, const char* path, char* const* arguments) {
  return run(path, arguments, environ);
}
STANDS_FOR(int, execvpe, const char* name, char* const* arguments, char* const* environment) {
  return run_named(name, arguments, environment);
}
STANDS_FOR(int, execvp, const char* name, char* const* arguments) {
  return run_named(name, arguments, environ);
}
STANDS_FOR(int, fexecve, int file, char* const* arguments, char* const* environment) {
  static constinit Next<int(int, char* const*, char* const*)> libc("fexecve");
  return with_layer(environment, [&](char* const* given) { return libc(file, arguments, given); });
}

using Spawn = int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                  char* const*, char* const*);
STANDS_FOR(int, posix_spawn, pid_t* process, const char* path,
           const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
           char* const* arguments, char* const* environment) {
  static constinit Next<Spawn> libc("posix_spawn");
  Place place;
  int folder = AT_FDCWD;
  if (!read_path(folder, path, true, place)) return errno;
  return with_layer(environment, [&](char* const* given) {
    return libc(process, path, actions, attributes, arguments, given);
  });
}
STANDS_FOR(int, posix_spawnp, pid_t* process, const char* name,
           const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
           char* const* arguments, char* const* environment) {
  static constinit Next<Spawn> libc("posix_spawnp");
  Place place;
  const char* file = file_of(name, place);
  if (file == nullptr && name != nullptr) return errno;
  return with_layer(environment, [&](char* const* given) {
    return libc(process, file, actions, attributes, arguments, given);
  });
}
STANDS_FOR(int, posix_spawn_file_actions_addopen, posix_spawn_file_actions_t* actions, int file,
           const char* path, int flags, mode_t mode) {
  static constinit Next<int(posix_spawn_file_actions_t*, int, const char*, int, mode_t)> libc(
      "posix_spawn_file_actions_addopen");
  Place place;
  if (path != nullptr && path[0] == '/' && is_active(false) &&
      prepare_open(AT_FDCWD, path, flags, place) == 0) {
    path = place.physical.c_str();
  }
  return libc(actions, file, path, flags, mode);
}

// libc's dlopen searches the RUNPATH of the library that called dlopen. The return address tells
// libc which library that is. The call of libc's dlopen below is the last statement, so the
// compiler makes it a jump. Therefore, libc sees the return address of the code that called this
// function.
STANDS_FOR(void*, dlopen, const char* path, int flags) {
  static constinit Next<void*(const char*, int)> libc("dlopen");
  if (path != nullptr && std::strchr(path, '/') != nullptr) path = library_path(path);
  return libc(path, flags);
}

STANDS_FOR(int, bind, int file, const sockaddr* address, socklen_t size) {
  char path[sizeof(sockaddr_un) + 1];
  if (!socket_path(address, size, path) || !is_active(false)) {
    return static_cast<int>(syscall(SYS_bind, file, address, size));
  }
  const int result = make_new(AT_FDCWD, path, [file](int, const char* at) {
    Address moved;
    if (!moved.set(at)) return fails(ENAMETOOLONG);
    return static_cast<int>(syscall(SYS_bind, file, moved.get(), Address::kSize));
  });
  if (result != 0 && errno == EEXIST) errno = EADDRINUSE;
  return result;
}
STANDS_FOR(int, connect, int file, const sockaddr* address, socklen_t size) {
  static constinit Next<int(int, const sockaddr*, socklen_t)> libc("connect");
  char path[sizeof(sockaddr_un) + 1];
  Place place;
  if (!socket_path(address, size, path) || !is_active(true)) return libc(file, address, size);
  if (find(AT_FDCWD, path, true, place) != 0) return -1;
  Address moved;
  if (!moved.set(place.physical.c_str())) return fails(ENAMETOOLONG);
  return libc(file, moved.get(), Address::kSize);
}

}  // extern "C"
