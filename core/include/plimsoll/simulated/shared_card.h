// A simulated card that several processes use. All of them map one file. Whenever a process takes
// memory from the driver or gives some back, it notes in the file how much of the card it holds.
//
// So memory that one process holds is not free for another. The memory of a process that has ended
// is free again, even if the process was killed. A lock in the file protects its content; if a
// process ends while it holds the lock, the lock is released.
//
// The file also has the most bytes that all processes held at the same time. On a real GPU, the
// processes may reach their peaks at other moments than in the simulation, and so hold more at the
// same time. The file therefore has an upper bound, too. For the bound, time is divided into
// periods. A new period begins whenever a process begins or ends, so all processes of a period run
// at the same time. The bound of a period is the sum of the peaks that its processes reached in the
// period. The file has the highest of these bounds.
//
// SharedCard works on Linux; elsewhere its constructor throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

class SharedCard {
 public:
  static constexpr std::size_t kMostUsers = 1024;

  // The entry of one process.
  struct User {
    std::int64_t process = 0;  // the process's number
    // When the process started, in clock ticks. Tells the process apart from a later one that gets
    // the same number.
    std::uint64_t started = 0;
    Bytes now = 0;
    Bytes most = 0;
    Bytes most_together = 0;  // the most that this process held in the current period
  };

  // Opens the file, and makes it if it does not exist. Throws std::system_error.
  explicit SharedCard(const std::string& path);
  ~SharedCard();
  SharedCard(const SharedCard&) = delete;
  SharedCard& operator=(const SharedCard&) = delete;

  // Takes memory of the card. If the card has less memory left than `size`, takes nothing and
  // returns false.
  bool take(Bytes size, Bytes capacity);
  void give_back(Bytes size);
  // Returns the bytes held by other processes that still run.
  [[nodiscard]] Bytes used_by_others();

  // Returns all processes that used the card, in the order in which they began.
  [[nodiscard]] std::vector<User> users();
  // Returns the most bytes that all processes held at the same time.
  [[nodiscard]] Bytes together();
  // Returns the most bytes that all processes could have held at the same time.
  [[nodiscard]] Bytes at_most();
  // Returns whether every process got an entry in the file.
  [[nodiscard]] bool is_complete();

 private:
  struct State;
  class Lock;

  // Returns this process's entry, made if necessary; null if the file is full.
  User* own();
  // Drops the memory of processes that have ended.
  void drop_ended();
  // Starts a new period because a process begins or ends: peaks of different periods cannot
  // coincide.
  void begin_again();
  [[nodiscard]] Bytes now() const;

  State* state_ = nullptr;
  User* own_ = nullptr;
};

}  // namespace plimsoll
