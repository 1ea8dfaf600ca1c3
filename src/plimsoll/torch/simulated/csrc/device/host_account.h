// Counts the difference in host memory between this process and the same program on a real GPU.
#pragma once

#include <cstdint>

namespace plimsoll::simulated {

// Counters in bytes. Python reads them too, and may place them in memory that several processes
// share.
struct HostAccount {
  std::int64_t absent = 0;       // contents of large host tensors; a simulation leaves them out
  std::int64_t most_absent = 0;  // the maximum of `absent` since the last read
  std::int64_t extra = 0;        // values of device tensors; a real run has them on the GPU
};

// Add `bytes` to the field `absent` or `extra`; `bytes` is negative when tensors are freed.
void note_absent(std::int64_t bytes);
void note_extra(std::int64_t bytes);

// Makes `note_absent` and `note_extra` add to `account` from now on. Bytes that were added
// earlier stay in the previous account.
void account_host_in(HostAccount* account);
// Returns a copy of the account, and resets `most_absent`.
HostAccount read_host_account();

}  // namespace plimsoll::simulated
