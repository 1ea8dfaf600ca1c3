// Redirects system calls that a library makes without libc. For example, safetensors creates files
// with Rust's rustix, which does not use libc. By syscall user dispatch (since 5.11) Linux turns
// such a call into a signal. The signal's handler then calls libc's function, which the layer
// replaces. The layer does this only in Python interpreters. It would not work in a Go program,
// which makes all its calls without libc and sets its own signal handlers.
#if defined(__x86_64__)

#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "calls.h"

namespace plimsoll::scratch {
namespace {

constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH
constexpr unsigned long kOn = 1;
constexpr char kLetsPass = 0;
constexpr char kHandsOver = 1;
constexpr int kInstruction = 2;  // the size of `syscall` in bytes

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  [[nodiscard]] bool has(std::uintptr_t address) const { return begin <= address && address < end; }
};
// These ranges hold the code of libc and of the loader. The kernel does not redirect system calls
// from libc's code. So it does not redirect the layer's own calls, which go through libc's
// syscall(2).
constinit Range libc;
constinit Range loader;
constinit bool is_watching = false;

__attribute__((tls_model("initial-exec"))) thread_local char selector = kLetsPass;

// Returns whether a signal handler cannot make a call in the program's place. Such a call needs the
// program's own stack, or changes signal state that the kernel restores after the handler.
bool needs_its_own_stack(long call) {
  switch (call) {
    case SYS_clone:
    case SYS_clone3:
    case SYS_fork:
    case SYS_vfork:
    case SYS_rt_sigprocmask:
    case SYS_rt_sigreturn:
    case SYS_sigaltstack: return true;
    default: return false;
  }
}

const char* text(long value) { return reinterpret_cast<const char*>(value); }
int number(long value) { return static_cast<int>(value); }
mode_t mode(long value) { return static_cast<mode_t>(value); }

// Makes a call without the layer. Returns -1 and sets errno if the call fails, as libc does.
long make_as_it_is(long call, const long (&a)[6]) {
  return syscall(call, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// Makes a futex call for a program that wants to wait without a timeout, but gives the call the
// timeout `kAtMost`. After the timeout, fails with EAGAIN, as if the futex's value had changed.
// The program must then check the value again. Without this limit, an OpenMP thread twice missed
// its wake-up under Linux 6.18 and waited for ever. The cause is unknown.
long wait_a_while(const long (&a)[6]) {
  constexpr timespec kAtMost{0, 100'000'000};
  const long result = syscall(SYS_futex, a[0], a[1], a[2], &kAtMost);
  if (result == -1 && errno == ETIMEDOUT) errno = EAGAIN;
  return result;
}
bool waits_without_end(long call, const long (&a)[6]) {
  return call == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT && a[3] == 0;
}

long make(long call, const long (&a)[6]) {
  switch (call) {
    case SYS_open: return open(text(a[0]), number(a[1]), mode(a[2]));
    case SYS_openat: return openat(number(a[0]), text(a[1]), number(a[2]), mode(a[3]));
    case SYS_creat: return creat(text(a[0]), mode(a[1]));
    case SYS_rename: return rename(text(a[0]), text(a[1]));
    case SYS_renameat: return renameat(number(a[0]), text(a[1]), number(a[2]), text(a[3]));
    case SYS_renameat2:
      return renameat2(number(a[0]), text(a[1]), number(a[2]), text(a[3]),
                       static_cast<unsigned>(a[4]));
    case SYS_link: return link(text(a[0]), text(a[1]));
    case SYS_linkat:
      return linkat(number(a[0]), text(a[1]), number(a[2]), text(a[3]), number(a[4]));
    case SYS_symlink: return symlink(text(a[0]), text(a[1]));
    case SYS_symlinkat: return symlinkat(text(a[0]), number(a[1]), text(a[2]));
    case SYS_unlink: return unlink(text(a[0]));
    case SYS_unlinkat: return unlinkat(number(a[0]), text(a[1]), number(a[2]));
    case SYS_rmdir: return rmdir(text(a[0]));
    case SYS_mkdir: return mkdir(text(a[0]), mode(a[1]));
    case SYS_mkdirat: return mkdirat(number(a[0]), text(a[1]), mode(a[2]));
    case SYS_mknod: return mknod(text(a[0]), mode(a[1]), static_cast<dev_t>(a[2]));
    case SYS_mknodat:
      return mknodat(number(a[0]), text(a[1]), mode(a[2]), static_cast<dev_t>(a[3]));
    case SYS_chmod: return chmod(text(a[0]), mode(a[1]));
    case SYS_fchmod: return fchmod(number(a[0]), mode(a[1]));
    case SYS_fchmodat: return fchmodat(number(a[0]), text(a[1]), mode(a[2]), 0);
    case SYS_chown: return chown(text(a[0]), static_cast<uid_t>(a[1]), static_cast<gid_t>(a[2]));
    case SYS_fchown:
      return fchown(number(a[0]), static_cast<uid_t>(a[1]), static_cast<gid_t>(a[2]));
    case SYS_lchown: return lchown(text(a[0]), static_cast<uid_t>(a[1]), static_cast<gid_t>(a[2]));
    case SYS_fchownat:
      return fchownat(number(a[0]), text(a[1]), static_cast<uid_t>(a[2]), static_cast<gid_t>(a[3]),
                      number(a[4]));
    case SYS_utimensat: {
      const auto* times = reinterpret_cast<const timespec*>(a[2]);
      if (a[1] == 0) return futimens(number(a[0]), times);
      return utimensat(number(a[0]), text(a[1]), times, number(a[3]));
    }
    case SYS_truncate: return truncate(text(a[0]), a[1]);
    case SYS_stat: return stat(text(a[0]), reinterpret_cast<struct stat*>(a[1]));
    case SYS_lstat: return lstat(text(a[0]), reinterpret_cast<struct stat*>(a[1]));
    case SYS_newfstatat:
      return fstatat(number(a[0]), text(a[1]), reinterpret_cast<struct stat*>(a[2]), number(a[3]));
    case SYS_statx:
      return statx(number(a[0]), text(a[1]), number(a[2]), static_cast<unsigned>(a[3]),
                   reinterpret_cast<struct statx*>(a[4]));
    case SYS_statfs: return statfs(text(a[0]), reinterpret_cast<struct statfs*>(a[1]));
    case SYS_access: return access(text(a[0]), number(a[1]));
    case SYS_faccessat: return faccessat(number(a[0]), text(a[1]), number(a[2]), 0);
    case SYS_readlink:
      return readlink(text(a[0]), reinterpret_cast<char*>(a[1]), static_cast<std::size_t>(a[2]));
    case SYS_readlinkat:
      return readlinkat(number(a[0]), text(a[1]), reinterpret_cast<char*>(a[2]),
                        static_cast<std::size_t>(a[3]));
    case SYS_chdir: return chdir(text(a[0]));
    default: return waits_without_end(call, a) ? wait_a_while(a) : make_as_it_is(call, a);
  }
}

void take_over(int /*signal*/, siginfo_t* /*info*/, void* context) {
  const int error_before = errno;
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const long call = static_cast<long>(registers[REG_RAX]);
  if (needs_its_own_stack(call)) {  // from this call on, this thread's calls are not redirected
    selector = kLetsPass;
    registers[REG_RIP] -= kInstruction;
    return;
  }
  const long arguments[] = {registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                            registers[REG_R10], registers[REG_R8],  registers[REG_R9]};
  const bool is_loader = loader.has(static_cast<std::uintptr_t>(registers[REG_RIP]));
  const long result = is_loader ? make_as_it_is(call, arguments) : make(call, arguments);
  registers[REG_RAX] = result == -1 ? -errno : result;
  errno = error_before;
}

// An address, and the code range of the library that contains it.
struct Library {
  std::uintptr_t address;
  Range code;
};

int look_at(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  auto* wanted = static_cast<Library*>(data);
  for (int at = 0; at < info->dlpi_phnum; ++at) {
    const auto& part = info->dlpi_phdr[at];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    const Range code{begin, begin + part.p_memsz};
    if (!code.has(wanted->address)) continue;
    wanted->code = code;
    return 1;
  }
  return 0;
}

Range code_around(const void* address) {
  Library wanted{reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(look_at, &wanted);
  return wanted.code;
}

// Begins to redirect the calling thread's system calls. Unblocks SIGSYS first, because the kernel
// kills a process at a redirected call of a thread that blocks SIGSYS.
void watch_this_thread() {
  sigset_t handed;
  sigemptyset(&handed);
  sigaddset(&handed, SIGSYS);
  if (sigprocmask(SIG_UNBLOCK, &handed, nullptr) != 0) return;
  selector = kHandsOver;
  prctl(kSetDispatch, kOn, libc.begin, libc.end - libc.begin, &selector);
}

__attribute__((constructor(103))) void begin() {
  if (dlsym(RTLD_DEFAULT, "Py_BytesMain") == nullptr || !is_active(false)) return;
  libc = code_around(dlsym(RTLD_NEXT, "syscall"));
  loader = code_around(reinterpret_cast<const void*>(_r_debug.r_brk));
  if (libc.begin == 0 || loader.begin == 0) return;
  struct sigaction action{};
  action.sa_sigaction = take_over;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return;
  is_watching = true;
  watch_this_thread();
  pthread_atfork(nullptr, nullptr, watch_this_thread);
}

struct Work {
  void* (*routine)(void*);
  void* argument;
};

void* run_watched(void* data) {
  const Work work = *static_cast<Work*>(data);
  std::free(data);
  watch_this_thread();
  return work.routine(work.argument);
}

// Returns the signals of `set` without SIGSYS, which must not be blocked.
const sigset_t* without_handed(int how, const sigset_t* set, sigset_t& copy) {
  if (set == nullptr || !is_watching || how == SIG_UNBLOCK) return set;
  copy = *set;
  sigdelset(&copy, SIGSYS);
  return &copy;
}

}  // namespace
}  // namespace plimsoll::scratch

using namespace plimsoll::scratch;

extern "C" {

using Routine = void*(void*);
STANDS_FOR(int, pthread_create, pthread_t* thread, const pthread_attr_t* attributes,
           Routine* routine, void* argument) {
  static constinit Next<int(pthread_t*, const pthread_attr_t*, Routine*, void*)> next(
      "pthread_create");
  auto* work = is_watching ? static_cast<Work*>(std::malloc(sizeof(Work))) : nullptr;
  if (work == nullptr) return next(thread, attributes, routine, argument);
  *work = {routine, argument};
  const int error = next(thread, attributes, &run_watched, static_cast<void*>(work));
  if (error != 0) std::free(work);
  return error;
}

STANDS_FOR(int, pthread_sigmask, int how, const sigset_t* set, sigset_t* before) {
  static constinit Next<int(int, const sigset_t*, sigset_t*)> next("pthread_sigmask");
  sigset_t copy;
  return next(how, without_handed(how, set, copy), before);
}
STANDS_FOR(int, sigprocmask, int how, const sigset_t* set, sigset_t* before) {
  static constinit Next<int(int, const sigset_t*, sigset_t*)> next("sigprocmask");
  sigset_t copy;
  return next(how, without_handed(how, set, copy), before);
}

// Ignores a handler that the program sets for SIGSYS, because the layer's own handler redirects
// calls by this signal. LLVM's handler, for example, would report each redirected call as a crash.
// To the program, SIGSYS always seems to have its default action.
STANDS_FOR(int, sigaction, int signal, const struct sigaction* action, struct sigaction* before) {
  static constinit Next<int(int, const struct sigaction*, struct sigaction*)> next("sigaction");
  if (!is_watching || signal != SIGSYS) return next(signal, action, before);
  if (before != nullptr) *before = {};
  return 0;
}
using Handler = void(int);
STANDS_FOR(Handler*, signal, int signal, Handler* handler) {
  static constinit Next<Handler*(int, Handler*)> next("signal");
  return is_watching && signal == SIGSYS ? SIG_DFL : next(signal, handler);
}

}  // extern "C"

#endif
