#include "pass.h"

#include <unistd.h>

#include <cerrno>

extern "C" {
[[gnu::visibility("hidden")]] unsigned long plimsoll_pass = 0;
[[gnu::visibility("hidden")]] long plimsoll_pass_call(long, long, long, long, long, long);
}

// Makes a call by libc's syscall(2), because raw_calls.cpp redirects system calls from all other
// code. After the call, wipes the pass from the stack and the registers. Otherwise, a later system
// call with fewer arguments, from another library, could carry the pass by accident.
#if defined(__x86_64__)
asm("  .text\n"
    "  .hidden plimsoll_pass_call\n"
    "  .globl plimsoll_pass_call\n"
    "  .type plimsoll_pass_call, @function\n"
    "plimsoll_pass_call:\n"
    "  .cfi_startproc\n"
    "  pushq plimsoll_pass(%rip)\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  call syscall@PLT\n"
    "  movq $0, (%rsp)\n"
    "  popq %r9\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  ret\n"
    "  .cfi_endproc\n"
    "  .size plimsoll_pass_call, . - plimsoll_pass_call\n");
#else
long plimsoll_pass_call(long call, long a, long b, long c, long d, long e) {
  const long result = syscall(call, a, b, c, d, e, plimsoll_pass);
  asm volatile("mov x5, xzr\n\tmov x6, xzr" ::: "x5", "x6");
  return result;
}
#endif

namespace plimsoll::scratch {

void set_pass(unsigned long pass) { plimsoll_pass = pass; }

// Makes a call with the pass. Landlock refuses the call if the file lies outside the writable
// folders. This function then makes the call again without the pass. The second call goes to the
// supervisor, which thus learns which file the program asked for.
long kernel::make_with_pass(long call, const long (&a)[5]) {
  const long result = plimsoll_pass_call(call, a[0], a[1], a[2], a[3], a[4]);
  if (result != -1 || errno != EACCES || plimsoll_pass == 0) return result;
  return syscall(call, a[0], a[1], a[2], a[3], a[4], 0L);
}

}  // namespace plimsoll::scratch
