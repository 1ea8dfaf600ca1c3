// The scratch layer keeps the writes of a process and its children in a folder, and shows them at
// their original paths. The folder holds all state, so children need only its name.
//
// FOLDER/files mirrors absolute paths. A folder there is a copy or a bridge:
// - A copy replaces the real folder. The layer filled it with links to the real folder's entries
//   before the first change in it, and shows it to programs since.
// - A bridge leads to copies further down. The layer looks all other names of it up in the real
//   folder. It has the set-user-ID bit, which means nothing on folders.
// A link of the layer begins with kMark, and no other link does. It points to an unchanged file or
// folder. Before that one changes, a copy of it replaces the link.
#pragma once

#include <sys/stat.h>

#include <csignal>

#include "path.h"

namespace plimsoll::scratch {

inline constexpr char kMark[] = "/.//.";

// Returns whether this process has a layer. A read (`is_read`) needs none before the first write.
[[nodiscard]] bool is_active(bool is_read);
// Returns the layer's own folder.
[[nodiscard]] const Path& top_folder();
// Returns lines with the layer's own folder, the folders that the layer leaves alone, and the pass.
[[nodiscard]] const Path& given_folders();

// A program's path, looked up as the kernel would.
struct Place {
  enum class Lies { real, bridge, copied };

  Path path;      // as programs see it: absolute, without links, . and ..
  Path physical;  // the path on the disk
  Lies lies = Lies::real;
  bool exists = false;
  bool is_free = false;  // the layer leaves it alone: /dev, /proc, /sys and the given folders
  struct stat status{};  // set only if the file exists and is not free
};

// The functions below return 0, or -1 and errno. `find` succeeds where only the last name is
// missing.
[[nodiscard]] int find(int folder, const char* path, bool follows, Place& place);

// Turns a path in the layer's folder into the path that programs see.
void to_seen(Path& physical);
// Gives the absolute path that programs see of an open folder or file; -1 if it has none.
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

// Makes a copy of a place's folder, and returns the path in it at which the place can be made,
// replaced or removed. Needs a `Change`. Fails if the user may not write to the real folder.
[[nodiscard]] int enter_copy(const Place& place, Path& physical);
// Makes a copy of a file, folder or link, with a file's contents if wanted, and makes it the place.
[[nodiscard]] int copy_up(Place& place, bool with_contents);
// Gives the path where the layer keeps the copy of a path.
[[nodiscard]] int in_files(const Path& path, Path& physical);
// Makes copies of all folders below a folder's bridges, so that the folder can be moved.
[[nodiscard]] int copy_bridges(const Place& place);
// Keeps the path of a removed file for the report, if it is a real file.
void note_removed(const Path& path);
// Adds the name of a shared memory object to FOLDER/shared. The supervisor removes the object after
// the trial.
void note_shared(const char* name);
// Makes a new name in a folder of the layer that no program sees.
[[nodiscard]] int new_name(Path& path);
// Returns whether a folder has entries.
[[nodiscard]] bool has_entries(const Place& place);

}  // namespace plimsoll::scratch
