// The difference between this process's memory and that on a real machine.
#pragma once

#include <cstdint>

namespace plimsoll::simulated {

// Bytes; shared with Python, which may place it in memory that several processes share.
struct HostAccount {
  std::int64_t absent = 0;       // of large host tensors, which have no contents here
  std::int64_t most_absent = 0;  // the most since the last read
  std::int64_t extra = 0;        // of values of device tensors, which only a simulation has
};

// Notes that large host tensors are made or die.
void note_absent(std::int64_t bytes);
void note_extra(std::int64_t bytes);

// Keeps this process's account at this place from now on; earlier notes stay where they are.
void account_host_in(HostAccount* account);
// Returns the account, and resets `most_absent`.
HostAccount read_host_account();

}  // namespace plimsoll::simulated
