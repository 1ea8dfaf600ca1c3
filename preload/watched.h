// The system calls that the wall watches, and which of their arguments name a file.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>

namespace plimsoll::scratch {

enum class Effect : signed char {
  opens,     // opens or creates a file, by the flags of open(2)
  makes,     // creates a name, and fails if it exists
  names,     // removes a name of a file, or gives the file another name
  replaces,  // creates a name, or replaces an existing one
  truncates,
  metadata,  // changes mode, owner, times, extended attributes, or flags
};

struct Watched {
  static constexpr signed char kNone = -1;

  int call;
  Effect effect;
  // Each of the three members below is an argument's position in the call, counted from 0. It is
  // kNone if the call has no such argument. The argument at `folder` is the descriptor to which the
  // path is relative. If the call has no path, this argument is the descriptor of the file itself.
  // The argument at `flags` has the flags of open(2) or AT_ flags.
  signed char folder;
  signed char path;
  signed char flags = kNone;
  // Whether the call follows a link at the path's end by default. The call's flags may change that.
  bool follows = true;
};

// The kernel headers that plimsoll is built with may be too old to define these calls. The numbers
// of these calls are the same on all machines.
inline constexpr int kFchmodat2 = 452;
inline constexpr int kSetxattrat = 463;
inline constexpr int kRemovexattrat = 466;
inline constexpr int kFileSetattr = 469;

// All watched calls. A call with two paths has an entry for each path.
inline constexpr Watched kWatched[] = {
    {SYS_openat, Effect::opens, 0, 1, 2},
    {SYS_openat2, Effect::opens, 0, 1, 2},  // argument 2 points to an open_how with the flags
    {SYS_renameat, Effect::names, 0, 1, -1, false},
    {SYS_renameat, Effect::replaces, 2, 3, -1, false},
    {SYS_renameat2, Effect::names, 0, 1, -1, false},
    {SYS_renameat2, Effect::replaces, 2, 3, -1, false},
    {SYS_linkat, Effect::makes, 2, 3, -1, false},
    {SYS_linkat, Effect::names, 0, 1, 4, false},
    {SYS_symlinkat, Effect::makes, 1, 2, -1, false},
    {SYS_unlinkat, Effect::names, 0, 1, -1, false},
    {SYS_mkdirat, Effect::makes, 0, 1, -1, false},
    {SYS_mknodat, Effect::makes, 0, 1, -1, false},
    {SYS_truncate, Effect::truncates, -1, 0},
    {SYS_fchmod, Effect::metadata, 0, -1},
    {SYS_fchmodat, Effect::metadata, 0, 1},
    {kFchmodat2, Effect::metadata, 0, 1, 3},
    {SYS_fchown, Effect::metadata, 0, -1},
    {SYS_fchownat, Effect::metadata, 0, 1, 4},
    {SYS_utimensat, Effect::metadata, 0, 1, 3},
    {SYS_setxattr, Effect::metadata, -1, 0},
    {SYS_lsetxattr, Effect::metadata, -1, 0, -1, false},
    {SYS_fsetxattr, Effect::metadata, 0, -1},
    {kSetxattrat, Effect::metadata, 0, 1, 2},
    {SYS_removexattr, Effect::metadata, -1, 0},
    {SYS_lremovexattr, Effect::metadata, -1, 0, -1, false},
    {SYS_fremovexattr, Effect::metadata, 0, -1},
    {kRemovexattrat, Effect::metadata, 0, 1, 2},
    {kFileSetattr, Effect::metadata, 0, 1, 4},
    {SYS_ioctl, Effect::metadata, 0, -1},
#ifdef SYS_open  // aarch64 has none of these
    {SYS_open, Effect::opens, -1, 0, 1},
    {SYS_creat, Effect::opens, -1, 0},
    {SYS_rename, Effect::names, -1, 0, -1, false},
    {SYS_rename, Effect::replaces, -1, 1, -1, false},
    {SYS_link, Effect::makes, -1, 1, -1, false},
    {SYS_link, Effect::names, -1, 0, -1, false},
    {SYS_symlink, Effect::makes, -1, 1, -1, false},
    {SYS_unlink, Effect::names, -1, 0, -1, false},
    {SYS_rmdir, Effect::names, -1, 0, -1, false},
    {SYS_mkdir, Effect::makes, -1, 0, -1, false},
    {SYS_mknod, Effect::makes, -1, 0, -1, false},
    {SYS_chmod, Effect::metadata, -1, 0},
    {SYS_chown, Effect::metadata, -1, 0},
    {SYS_lchown, Effect::metadata, -1, 0, -1, false},
    {SYS_utime, Effect::metadata, -1, 0},
    {SYS_utimes, Effect::metadata, -1, 0},
    {SYS_futimesat, Effect::metadata, 0, 1},
#endif
};

// An open call with none of these flags only reads.
inline constexpr int kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);

}  // namespace plimsoll::scratch
