// The process whose call the wall's supervisor looks at: its memory, and the files that it means.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include "path.h"

namespace plimsoll::scratch {

// A file that a caller means, by the path that the supervisor knows it by.
struct Meant {
  enum class Is {
    found,    // at `path`; or it could be made there, if it does not `exist`
    nowhere,  // a folder on its path is missing, or the path is none
    unnamed,  // open without a path: a pipe, a socket, a file in memory, a removed file
    unknown,  // the supervisor may not look into the caller
  };

  Path path;
  bool exists = false;
  struct stat status{};  // if it exists, or is unnamed
};

class Caller {
 public:
  explicit Caller(pid_t process) : process_(process) {}

  // Bytes of its memory; false where it has none there, or may not be looked into.
  [[nodiscard]] bool read(unsigned long long address, void* to, std::size_t size) const;
  [[nodiscard]] bool read_text(unsigned long long address, Path& text) const;

  // The file at a path, relative to the folder that it has open as this.
  [[nodiscard]] Meant::Is find(int folder, const char* path, bool follows, Meant& meant) const;
  // The file that it has open; AT_FDCWD is its current folder.
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
