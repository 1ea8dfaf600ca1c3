// The scratch layer: what a process and its children write lies in a folder of its own, and they
// see it in its place. Nothing is remembered but what the folder holds, so children need only its
// name.
//
// FOLDER/files mirrors absolute paths. A folder there is a copy or a bridge:
// - A copy stands for the real folder at its place. It was filled with links to the real one's
//   entries when something in it was to change, and has been what programs see ever since.
// - A bridge only leads to copies further down; all else in it is looked up in the real folder. It
//   has the set-user-ID bit, which means nothing on folders.
// A link of the layer begins with kMark, which leads nowhere else. What it points to is unchanged;
// before a file changes, a copy of it replaces its link. A link to a folder becomes a copy
// likewise.
#pragma once

#include <sys/stat.h>

#include <csignal>

#include "path.h"

namespace plimsoll::scratch {

inline constexpr char kMark[] = "/.//.";

// Where the layer is; false where there is none, or nothing was written yet and `is_read`.
[[nodiscard]] bool is_active(bool is_read);
// The layer's own folder, and with it, one a line, those that the layer leaves alone, and the pass.
[[nodiscard]] const Path& top_folder();
[[nodiscard]] const Path& given_folders();

// A path of a program's, looked up as the kernel would.
struct Place {
  enum class Lies { real, bridge, copied };

  Path path;      // as programs see it: absolute, without links, . and ..
  Path physical;  // where it is
  Lies lies = Lies::real;
  bool exists = false;
  bool is_free = false;  // not the layer's: devices, processes, and the folders it was given
  struct stat status{};  // if it exists, and is not free
};

// All that follow return 0, or -1 and errno. `find` succeeds where only the last name is missing.
[[nodiscard]] int find(int folder, const char* path, bool follows, Place& place);

// The path that programs see of what the kernel knows by another.
void to_seen(Path& physical);
// The absolute path, as programs see it, of an open folder or file; -1 if it has none.
[[nodiscard]] int seen_path(int file, Path& path);

// While it lives nobody else changes the layer, and no signal handler runs in this thread.
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

// Within a `Change`: have a copy of a place's folder, and say where in it the place can be made,
// replaced or removed. Fails where the real folder may not be written to.
[[nodiscard]] int enter_copy(const Place& place, Path& physical);
// Have a copy of what is there, which then is the place: of a file with its contents, if wanted.
[[nodiscard]] int copy_up(Place& place, bool with_contents);
// A copied folder lies here.
[[nodiscard]] int in_files(const Path& path, Path& physical);
// Have copies of all that lies behind a folder's bridges, so that it can be moved.
[[nodiscard]] int copy_bridges(const Place& place);
// Of a name that is there no longer: keep it for the report, if it is one of the real files.
void note_removed(const Path& path);
// Adds the name of a shared memory object to FOLDER/shared. The supervisor removes the object after
// the trial.
void note_shared(const char* name);
// A new name in a folder of the layer that no program sees.
[[nodiscard]] int new_name(Path& path);
// Whether a folder has entries.
[[nodiscard]] bool has_entries(const Place& place);

}  // namespace plimsoll::scratch
