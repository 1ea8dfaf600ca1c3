// A simulated card that several processes use: each notes in a file that all of them map what it
// has of the card, whenever it takes memory from the driver or gives some back.
//
// So a process that is killed has told what it took, memory that one process has is not free for
// another, and the most that all have at the same time is known. A lock in the file guards it; a
// process that ends while it holds the lock loses it.
//
// How processes take turns may differ on a GPU. The file therefore also knows the most that is
// possible at any pace: as long as no process begins or ends, the peaks of all may come together.
// For Linux; elsewhere opening a file throws.
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

  // One process's part.
  struct User {
    std::int64_t process = 0;   // its number
    std::uint64_t started = 0;  // in clock ticks, as numbers of processes are used again
    Bytes now = 0;
    Bytes most = 0;
    Bytes most_together = 0;  // since a process last began or ended
  };

  // Makes the file if there is none. Throws std::system_error.
  explicit SharedCard(const std::string& path);
  ~SharedCard();
  SharedCard(const SharedCard&) = delete;
  SharedCard& operator=(const SharedCard&) = delete;

  // False where the card has not so much left, and then nothing is taken.
  bool take(Bytes size, Bytes capacity);
  void give_back(Bytes size);
  // By processes that still run.
  [[nodiscard]] Bytes used_by_others();

  // All that used the card, in the order in which they began.
  [[nodiscard]] std::vector<User> users();
  // The most that all had at the same time.
  [[nodiscard]] Bytes together();
  // The most that they might have had at the same time.
  [[nodiscard]] Bytes at_most();
  // Whether the file had a place for each process.
  [[nodiscard]] bool is_complete();

 private:
  struct State;
  class Lock;

  // This process's, made if need be; null where there is no place.
  User* own();
  // Forgets what processes had that have ended.
  void drop_ended();
  // A process begins or ends: peaks before and after cannot come together.
  void begin_again();
  [[nodiscard]] Bytes now() const;

  State* state_ = nullptr;
  User* own_ = nullptr;
};

}  // namespace plimsoll
