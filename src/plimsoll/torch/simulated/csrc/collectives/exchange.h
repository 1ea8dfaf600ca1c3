// Exchanges bytes between the ranks of a group. Python sends them through the group's store
// (plimsoll.torch.simulated.ranks.exchange).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::simulated {

// One exchange, between all ranks of a group or between two of them.
struct Meeting {
  std::uint64_t group = 0;
  std::int32_t to = -1;    // the receiving rank; -1 for none
  std::int32_t from = -1;  // the sending rank; -1 for none, and -2 for any
  std::int32_t tag = 0;
  std::string what;    // the call, such as "all_reduce"
  std::string agreed;  // a text that must be equal on all ranks
};

// Sends this rank's bytes without waiting. Returns the meeting's number, which `collect` takes.
std::uint64_t post(const Meeting& meeting, std::string_view given);
// The bytes of all ranks, as `collect` returns them.
struct Collected {
  std::uint64_t series = 0;  // a random number, the same on all ranks
  std::int64_t from = -1;    // for a receive: the sender's rank; otherwise -1
  // One entry for each rank. For a receive, this has only the sender's entry.
  std::vector<std::string> given;
};
// Waits until all ranks have sent their bytes. Throws if a rank will never take part.
Collected collect(std::uint64_t number);
// Notes that a group uses an NCCL communicator on a device. NCCL takes memory when a communicator
// or a connection is first used.
//
// `key` names the communicator. The key of the whole group's communicator is the device's number.
// The key of a communicator for only the ranks 0 and 3 is "0:3". `pattern` names the connections:
// "ring" for a collective, "to 1,2 from 3" for messages to and from these ranks, "" for no
// connections.
void need_communicator(std::uint64_t group, int device, std::string_view key,
                       std::string_view pattern);
// Drops the group's communicators and frees their memory.
void drop_communicators(std::uint64_t group);

}  // namespace plimsoll::simulated
