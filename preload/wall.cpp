#include "wall.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "kernel.h"
#include "watched.h"

namespace plimsoll::scratch {
namespace {

constexpr std::uint64_t kTruncate = 1U << 14;  // LANDLOCK_ACCESS_FS_TRUNCATE
constexpr std::uint64_t kWriteFile = LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate;
constexpr std::uint64_t kWriteFolder =
    kWriteFile | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
    LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
    LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |
    LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER;
constexpr int kFirstWithTruncate = 3;

// Closes a descriptor at the end of a scope, without a change of errno.
class Closing {
 public:
  explicit Closing(int file) : file_(file) {}
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;
  ~Closing() {
    const int error = errno;
    if (file_ >= 0) kernel::close(file_);
    errno = error;
  }

 private:
  int file_;
};

int check_landlock() {
  const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0UL,
                               static_cast<unsigned long>(LANDLOCK_CREATE_RULESET_VERSION));
  if (version < 0) return -errno;
  return version < kFirstWithTruncate ? -EOPNOTSUPP : 0;
}

// Allows writes to a file, or below a folder. A path that does not exist, or that this user cannot
// reach, stays forbidden without an error.
int allow(int ruleset, const char* path) {
  const int file = kernel::open(path, O_PATH);
  if (file < 0) return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -errno;
  const Closing closing(file);
  struct stat status;
  if (kernel::status_at(file, "", &status, AT_EMPTY_PATH) != 0) return -errno;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = S_ISDIR(status.st_mode) ? kWriteFolder : kWriteFile;
  rule.parent_fd = file;
  return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0
             ? 0
             : -errno;
}

// Makes a Landlock ruleset that allows writes only to the writable paths and below them. Returns
// the ruleset's descriptor, or a negative error number.
int make_ruleset(const char* const* writable, int count) {
  landlock_ruleset_attr handled{};
  handled.handled_access_fs = kWriteFolder;
  const auto ruleset =
      static_cast<int>(syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0));
  if (ruleset < 0) return -errno;
  for (int at = 0; at < count; ++at) {
    const int result = allow(ruleset, writable[at]);
    if (result == 0) continue;
    kernel::close(ruleset);
    return result;
  }
  return ruleset;
}

#if defined(__x86_64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_X86_64;
#else
constexpr std::uint32_t kMachine = AUDIT_ARCH_AARCH64;
#endif
constexpr std::uint32_t kUnknown = SECCOMP_RET_ERRNO | ENOSYS;

// The seccomp filter's program. It reads the arguments of watched system calls only. If it allows a
// system call by its number alone, the kernel remembers that, and later does not run the filter for
// this number.
class Filter {
 public:
  explicit Filter(unsigned long long pass) : pass_(pass) {
    refuse_other_machines();
    refuse(SYS_io_uring_setup);  // the kernel itself makes io_uring's calls, so no filter sees them
    for (const Watched& each : kWatched) watch(each);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  int install(unsigned long flags) {
    const sock_fprog program{size_, code_};
    return static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
  }

 private:
  static constexpr std::size_t kMost = 1024;
  static constexpr std::uint32_t low_of(std::uint32_t argument) {
    return static_cast<std::uint32_t>(offsetof(seccomp_data, args)) + 8 * argument;
  }

  void add(int code, std::uint32_t value, std::uint8_t if_true = 0, std::uint8_t if_false = 0) {
    code_[size_++] = {static_cast<std::uint16_t>(code), if_true, if_false, value};
  }
  void load(std::size_t place) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(place)); }
  // Adds a jump: if the loaded value is not `value`, the next `skipped` instructions are skipped.
  void if_equal(std::uint32_t value, std::uint8_t skipped) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped);
  }

  void refuse_other_machines() {
    load(offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, kMachine, 1, 0);
    add(BPF_RET | BPF_K, kUnknown);
    load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // __X32_SYSCALL_BIT
    add(BPF_RET | BPF_K, kUnknown);
#endif
  }

  void refuse(long call) {
    if_equal(static_cast<std::uint32_t>(call), 1);
    add(BPF_RET | BPF_K, kUnknown);
  }

  void watch(const Watched& watched) {
    const std::size_t start = size_;
    if_equal(static_cast<std::uint32_t>(watched.call), 0);
    if (watched.call == SYS_ioctl) let_other_ioctls_pass();
    if (watched.effect == Effect::opens && watched.call != SYS_openat2 && watched.flags >= 0) {
      let_readers_pass(static_cast<std::uint32_t>(watched.flags));
    }
    ask_without_pass();
    code_[start].jf = static_cast<std::uint8_t>(size_ - start - 1);
  }

  void let_readers_pass(std::uint32_t flags) {
    load(low_of(flags));
    add(BPF_JMP | BPF_JSET | BPF_K, kWrites, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  void let_other_ioctls_pass() {
    load(low_of(1));
    add(BPF_JMP | BPF_JEQ | BPF_K, FS_IOC_SETFLAGS, 2, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, FS_IOC_FSSETXATTR, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  void ask_without_pass() {
    load(low_of(5));
    if_equal(static_cast<std::uint32_t>(pass_), 3);
    load(low_of(5) + 4);
    if_equal(static_cast<std::uint32_t>(pass_ >> 32), 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    add(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
  }

  unsigned long long pass_;
  unsigned short size_ = 0;
  sock_filter code_[kMost];
};

// Installs the filter and returns its listener, the descriptor from which the supervisor reads the
// watched calls. From Linux 5.19 on, a signal does not interrupt a call that is being examined.
int install_filter(unsigned long long pass) {
  constexpr unsigned long kWaitKillable = 1UL << 5;  // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
  constexpr unsigned long kFlags =
      SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  Filter filter(pass);
  int listener = filter.install(kFlags | kWaitKillable);
  if (listener < 0 && errno == EINVAL) listener = filter.install(kFlags);
  return listener < 0 ? -errno : listener;
}

// Tries to raise a wall. Runs in a child of a process that may have many threads, so it makes only
// system calls.
[[noreturn]] void try_to_raise() {
  const int listener = plimsoll_wall_raise(nullptr, 0, 1);
  syscall(SYS_exit_group, listener < 0 ? -listener : 0);
  __builtin_unreachable();
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

int plimsoll_wall_is_possible() {
  const long child = syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL);  // its end sends no SIGCHLD
  if (child < 0) return -errno;
  if (child == 0) try_to_raise();
  int status = 0;
  while (waitpid(static_cast<pid_t>(child), &status, static_cast<int>(__WCLONE)) < 0) {
    if (errno != EINTR) return -errno;
  }
  return WIFEXITED(status) ? -WEXITSTATUS(status) : -EOPNOTSUPP;
}

int plimsoll_wall_raise(const char* const* writable, int count, unsigned long long pass) {
  if (const int error = check_landlock(); error != 0) return error;
  const int ruleset = make_ruleset(writable, count);
  if (ruleset < 0) return ruleset;
  const Closing closing(ruleset);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -errno;
  if (syscall(SYS_landlock_restrict_self, ruleset, 0) != 0) return -errno;
  return install_filter(pass);
}
