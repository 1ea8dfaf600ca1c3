/* Makes one system call, which its first argument names, without libc's functions for it. The
   second argument is a file or a folder; the third is a name that is free. Prints the call's errno:
   0 if it succeeded. Calls without a path get the file open for reading. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char* file;
static const char* other;

/* Where the layer is, its call carries the pass. This one has three arguments of the six, and takes
   the others as it finds them. */
static long change_with_leftovers(void) {
#if defined(__x86_64__)
  long result = 0;
  close(open(other, O_WRONLY | O_CREAT, 0600));
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(SYS_openat), "D"(AT_FDCWD), "S"(file), "d"(O_WRONLY | O_APPEND)
                   : "rcx", "r11", "memory");
  if (result != -EACCES) return result;
#endif
  close(open(other, O_WRONLY | O_CREAT, 0600));
  return syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND);
}

static long change(const char* name) {
  const struct timespec times[2] = {{5, 6}, {7, 8}};
  const struct open_how how = {.flags = O_WRONLY | O_TRUNC};
#define IS(each) if (strcmp(name, each) == 0)
  IS("what a call of libc's left") return change_with_leftovers();
  const long reader = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY);
  char again[64];
  snprintf(again, sizeof again, "/proc/self/fd/%ld", reader);
  char parameters[128] = {0};
  long flags = FS_NODUMP_FL;
  IS("openat") return syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND);
  IS("truncated") return syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_TRUNC);
  IS("made") return syscall(SYS_openat, AT_FDCWD, other, O_RDONLY | O_CREAT, 0600);
  IS("unnamed") return syscall(SYS_openat, AT_FDCWD, ".", O_RDWR | O_TMPFILE, 0600);
  IS("openat2") return syscall(SYS_openat2, AT_FDCWD, file, &how, sizeof how);
  IS("renameat2") return syscall(SYS_renameat2, AT_FDCWD, file, AT_FDCWD, other, 0);
  IS("linkat") return syscall(SYS_linkat, AT_FDCWD, file, AT_FDCWD, other, 0);
  IS("symlinkat") return syscall(SYS_symlinkat, "x", AT_FDCWD, other);
  IS("unlinkat") return syscall(SYS_unlinkat, AT_FDCWD, file, 0);
  IS("mkdirat") return syscall(SYS_mkdirat, AT_FDCWD, other, 0700);
  IS("mknodat") return syscall(SYS_mknodat, AT_FDCWD, other, S_IFIFO | 0600, 0);
  IS("truncate") return syscall(SYS_truncate, file, 1);
  IS("fchmod") return syscall(SYS_fchmod, reader, 0604);
  IS("fchmodat") return syscall(SYS_fchmodat, AT_FDCWD, file, 0604);
  IS("fchmodat2") return syscall(452, AT_FDCWD, file, 0604, AT_SYMLINK_NOFOLLOW);
  IS("fchmodat2 of an open file") return syscall(452, reader, "", 0604, AT_EMPTY_PATH);
  IS("fchown") return syscall(SYS_fchown, reader, -1, getgid());
  IS("fchownat") return syscall(SYS_fchownat, AT_FDCWD, file, getuid(), -1, 0);
  IS("utimensat") return syscall(SYS_utimensat, AT_FDCWD, file, times, 0);
  IS("utimensat of an open file") return syscall(SYS_utimensat, reader, NULL, times, 0);
  IS("setxattr") return syscall(SYS_setxattr, file, "user.x", "1", 1, 0);
  IS("fsetxattr") return syscall(SYS_fsetxattr, reader, "user.x", "1", 1, 0);
  IS("removexattr") return syscall(SYS_removexattr, file, "user.kept");
  IS("setxattrat") {
    const struct {
      const void* value;
      unsigned size, flags;
    } value = {"1", 1, 0};
    return syscall(463, AT_FDCWD, file, 0, "user.x", &value, sizeof value);
  }
  IS("FS_IOC_SETFLAGS") return syscall(SYS_ioctl, reader, FS_IOC_SETFLAGS, &flags);
  IS("FS_IOC_FSSETXATTR") {
    if (syscall(SYS_ioctl, reader, FS_IOC_FSGETXATTR, parameters) != 0) return -1;
    ((struct fsxattr*)parameters)->fsx_xflags |= FS_XFLAG_NODUMP;
    return syscall(SYS_ioctl, reader, FS_IOC_FSSETXATTR, parameters);
  }
  IS("open by /proc") return syscall(SYS_openat, AT_FDCWD, again, O_WRONLY | O_TRUNC);
  IS("fchmodat by /proc") return syscall(SYS_fchmodat, AT_FDCWD, again, 0604);
  IS("io_uring_setup") return syscall(SYS_io_uring_setup, 4, parameters);
#if defined(__x86_64__)
  IS("int 0x80") { /* a 32-bit program's getpid */
    long result = 0;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");
    errno = (int)-result;
    return result;
  }
#endif
#ifdef SYS_open
  IS("open") return syscall(SYS_open, file, O_WRONLY | O_TRUNC);
  IS("creat") return syscall(SYS_creat, file, 0600);
  IS("rename") return syscall(SYS_rename, file, other);
  IS("rmdir") return syscall(SYS_rmdir, "empty");
  IS("chmod") return syscall(SYS_chmod, file, 0604);
  IS("lchown") return syscall(SYS_lchown, file, -1, getgid());
  IS("utime") return syscall(SYS_utime, file, NULL);
#endif
  errno = EINVAL;
  return -1;
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  file = arguments[2];
  other = arguments[3];
  printf("%d\n", change(arguments[1]) < 0 ? errno : 0);
  return 0;
}
