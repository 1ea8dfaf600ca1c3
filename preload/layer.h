// The scratch layer keeps the writes of a process and its children in a folder, and shows them at
// their original paths. The folder holds all state, so children need only its name.
//
// FOLDER/files mirrors absolute paths. A folder there is a copy or a bridge:
// - Programs see a copy instead of the real folder. The layer made the copy before the first change
//   in that folder, and filled it with links to the real folder's entries.
// - A bridge is a folder on the way to copies further down. If a name is missing in a bridge, the
//   layer looks it up in the real folder. The set-user-ID bit marks a bridge. The kernel ignores
//   this bit on folders.
// The layer's own links begin with kMark, and no other links do. Such a link points to an unchanged
// file or folder. A copy replaces the link before that file or folder changes.
#pragma once

#include <sys/stat.h>

#include <csignal>

#include "path.h"

namespace plimsoll::scratch {

inline constexpr char kMark[] = "/.//.";

// Returns whether a call of this process must go through a layer. Calls that only read (`is_read`)
// need the layer only after some process has changed a file in it.
[[nodiscard]] bool is_active(bool is_read);
// Returns the layer's own folder.
[[nodiscard]] const Path& top_folder();
// Returns a text of several lines: the layer's own folder, the folders that the layer leaves alone,
// and the pass.
[[nodiscard]] const Path& given_folders();

// The place to which a path in one of the program's calls leads. The layer looks the path up name
// by name, as the kernel does.
struct Place {
  enum class Lies { real, bridge, copied };

  Path path;      // as programs see it: absolute, without links, . and ..
  Path physical;  // the path on the disk
  Lies lies = Lies::real;
  bool exists = false;
  // Whether the layer leaves this place alone, because it lies in /dev, /proc, /sys or a folder
  // that the environment variable PLIMSOLL_SCRATCH names.
  bool is_free = false;
  struct stat status{};  // set only if the file exists and is not free
};

// The functions below return 0, or -1 with errno set.

// Sets `place` to the place of a path. Succeeds even if the last name of the path does not exist.
[[nodiscard]] int find(int folder, const char* path, bool follows, Place& place);

// Turns a path in the layer's folder into the path that programs see.
void to_seen(Path& physical);
// Sets `path` to the absolute path of an open folder or file, in the form that programs see. Fails
// if the folder or file has no path.
[[nodiscard]] int seen_path(int file, Path& path);

// While a Change exists, no other thread or process changes the layer, and no signal handler runs
// in this thread.
class Change {
 public:
  Change();
  ~Change();
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  int lock_;
  sigset_t blocked_before_;
};

// Makes a copy of the folder that a place lies in. Sets `physical` to the place's path in the copy.
// The caller can then make, replace or remove the file at `physical`. Needs a `Change`. Fails if
// the user may not write to the real folder.
[[nodiscard]] int enter_copy(const Place& place, Path& physical);
// Makes a copy of a file, folder or link, and sets `place` to the copy. Copies a file's contents
// only if `with_contents`.
[[nodiscard]] int copy_up(Place& place, bool with_contents);
// Sets `physical` to the path at which the layer keeps the copy of `path`.
[[nodiscard]] int in_files(const Path& path, Path& physical);
// Prepares a folder to be moved. If the folder is a bridge, turns it and every bridge below it into
// a copy.
[[nodiscard]] int copy_bridges(const Place& place);
// Adds a path to FOLDER/removed, if there is a real file or folder at this path. The layer calls
// this when the program has removed or renamed that file or folder. plimsoll reads FOLDER/removed
// after the program's end, for its report.
void note_removed(const Path& path);
// Adds the name of a shared memory object to FOLDER/shared. plimsoll reads this list after the
// program's end and removes the objects.
void note_shared(const char* name);
// Sets `path` to a new name in FOLDER/made, a folder that programs do not see.
[[nodiscard]] int new_name(Path& path);
// Returns whether a folder has entries.
[[nodiscard]] bool has_entries(const Place& place);

}  // namespace plimsoll::scratch
