#include "pass.h"

#include <unistd.h>

#include <cerrno>

extern "C" {
[[gnu::visibility("hidden")]] unsigned long plimsoll_pass = 0;
[[gnu::visibility("hidden")]] long plimsoll_pass_call(long, long, long, long, long, long);
}

// The kernel and libc leave the pass where they found it: on the stack and in a register. Another
// library's call with fewer arguments could pick it up there, so it is wiped. Libc's own function
// makes the call because raw_calls.cpp hands over calls that are made elsewhere.
#if defined(__x86_64__)
asm(R"(
  .text
  .hidden plimsoll_pass_call
  .globl plimsoll_pass_call
  .type plimsoll_pass_call, @function
plimsoll_pass_call:
  .cfi_startproc
  pushq plimsoll_pass(%rip)
  .cfi_adjust_cfa_offset 8
  call syscall@PLT
  movq $0, (%rsp)
  popq %r9
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
  .size plimsoll_pass_call, . - plimsoll_pass_call
)");
#else
long plimsoll_pass_call(long call, long a, long b, long c, long d, long e) {
  const long result = syscall(call, a, b, c, d, e, plimsoll_pass);
  asm volatile("mov x5, xzr\n\tmov x6, xzr" ::: "x5", "x6");
  return result;
}
#endif

namespace plimsoll::scratch {

void set_pass(unsigned long pass) { plimsoll_pass = pass; }

// Landlock refuses a call outside the writable folders even with the pass. The call is then made
// again without the pass, so that the supervisor learns which file the program asked for.
long kernel::make_with_pass(long call, const long (&a)[5]) {
  const long result = plimsoll_pass_call(call, a[0], a[1], a[2], a[3], a[4]);
  if (result != -1 || errno != EACCES || plimsoll_pass == 0) return result;
  return syscall(call, a[0], a[1], a[2], a[3], a[4], 0L);
}

}  // namespace plimsoll::scratch
