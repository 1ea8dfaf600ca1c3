// The meetings of a group's ranks. Python exchanges the bytes, through the group's store:
// plimsoll.torch.simulated.ranks.exchange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::simulated {

// One meeting of all ranks of a group, or of two of them.
struct Meeting {
  std::uint64_t group = 0;
  std::int32_t to = -1;    // the rank that is sent to; -1 for none
  std::int32_t from = -1;  // the rank that is received from; -1 for none, and -2 for any
  std::int32_t tag = 0;
  std::string what;    // such as "all_reduce", as programs call it
  std::string agreed;  // what all have to agree on, in words
};

// Posts what this rank gives, without waiting, and returns the number of the meeting.
std::uint64_t post(const Meeting& meeting, std::string_view given);
// The bytes that all ranks gave.
struct Collected {
  std::uint64_t series = 0;        // a number that all ranks of the meeting have alike
  std::int64_t from = -1;          // the rank that was received from, where that was any
  std::vector<std::string> given;  // by rank in the group; of one that is received from, that alone
};
// Waits for all. A rank that does not take part, and never will, is an error.
Collected collect(std::uint64_t number);
// That a group's communicator is needed on a device, for collectives or with these peers; its
// memory is taken the first time.
void need_communicator(std::uint64_t group, int device, std::string_view key,
                       std::string_view pattern);
// It goes, with its memory.
void drop_communicators(std::uint64_t group);

}  // namespace plimsoll::simulated
