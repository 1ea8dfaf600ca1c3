// Exchanges bytes between a group's ranks. Python passes them through the group's store:
// plimsoll.torch.simulated.ranks.exchange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::simulated {

// One exchange between all ranks of a group, or between two of them.
struct Meeting {
  std::uint64_t group = 0;
  std::int32_t to = -1;    // the receiving rank; -1 for none
  std::int32_t from = -1;  // the sending rank; -1 for none, and -2 for any
  std::int32_t tag = 0;
  std::string what;    // the call's name, such as "all_reduce"
  std::string agreed;  // the properties that all ranks have to agree on, in words
};

// Posts this rank's bytes without waiting, and returns the number of the meeting.
std::uint64_t post(const Meeting& meeting, std::string_view given);
// The bytes of all ranks.
struct Collected {
  std::uint64_t series = 0;        // the same random number on all ranks of the meeting
  std::int64_t from = -1;          // the sender's rank, if the receive was from any rank
  std::vector<std::string> given;  // by rank in the group; a receive has the sender's bytes alone
};
// Waits for all ranks. Throws if a rank will never take part.
Collected collect(std::uint64_t number);
// Notes that a group needs a communicator on a device, for collectives or with these peers. Its
// memory is taken the first time.
void need_communicator(std::uint64_t group, int device, std::string_view key,
                       std::string_view pattern);
// Drops the group's communicators and their memory.
void drop_communicators(std::uint64_t group);

}  // namespace plimsoll::simulated
