// The process whose call the wall's supervisor examines: its memory, and the files that its paths
// name.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "path.h"

namespace plimsoll::scratch {

// The file that a caller's path names, with the path by which the supervisor finds it.
struct Meant {
  enum class Is {
    found,    // `path` is set; the file exists, or can be made there
    nowhere,  // a folder on its path is missing, or the path is invalid
    unnamed,  // an open file without a path: a pipe, a socket, a file in memory, a removed file
    unknown,  // the kernel does not let the supervisor inspect the caller
  };

  Path path;
  bool exists = false;
  struct stat status{};  // set if the file exists, or is unnamed
};

class Caller {
 public:
  explicit Caller(pid_t process) : process_(process) {}

  // Reads bytes of the caller's memory. Returns false if nothing is mapped there, or if the
  // supervisor may not read it.
  [[nodiscard]] bool read(unsigned long long address, void* to, std::size_t size) const;
  [[nodiscard]] bool read_text(unsigned long long address, Path& text) const;

  // Finds the file at a path. `folder` is a descriptor of the caller; a relative path starts there.
  [[nodiscard]] Meant::Is find(int folder, const char* path, bool follows, Meant& meant) const;
  // Finds the file behind a descriptor of the caller; AT_FDCWD is its current folder.
  [[nodiscard]] Meant::Is find_open(int file, Meant& meant) const;
  [[nodiscard]] bool find_program(Path& path) const;

 private:
  [[nodiscard]] bool own_file(Path& path, const char* name) const;
  [[nodiscard]] Meant::Is walk(const Path& root, Path& pending, bool follows, Meant& meant) const;
  [[nodiscard]] Meant::Is follow(const Path& root, const Path& parent, Path& pending,
                                 Meant& meant) const;
  [[nodiscard]] bool is_itself(Path& link) const;

  pid_t process_;
};

}  // namespace plimsoll::scratch
