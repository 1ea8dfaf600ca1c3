// Remembers the requests that a space served, in order, so that a program that repeats its steps
// gets each block where the previous step had it. After some steps nothing has to be mapped any
// more.
//
// With best fit alone, pieces would move for ever. A block that outlives its step, such as the
// loss, lies elsewhere in the next step. So every later choice differs a little, and other pieces
// have to move.
//
// Requests are recognised by their sizes. While the sizes repeat, `followed_` is the past request
// that the next request repeats. When a size differs, `find_again` looks up the latest request of
// the same size that came after the same kContext sizes. If there is no such request, `find_again`
// compares only kShortContext sizes, because a step may begin with other requests than the previous
// step. This second search ignores a request that is fewer than kLeastStep requests old, because
// such a request may belong to a similar layer of the same step.
//
// Invariants:
// - past_[i % kCapacity] is request number i, for count_ - kCapacity <= i < count_. Entries for
//   negative i have size 0.
// - An index's hash covers the last `context` sizes.
// - If is_following_, followed_ < count_, and request number followed_ is in the past.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plimsoll/allocator/elastic/books/context_hash.h"
#include "plimsoll/base/units.h"

namespace plimsoll {

class Repetition {
 public:
  // How many requests are remembered. A longer step is not recognised.
  static constexpr std::size_t kCapacity = std::size_t{1} << 14;
  // A past request is followed if the kContext requests before it have the same sizes as the latest
  // kContext requests.
  static constexpr std::size_t kContext = 7;
  // If kContext sizes match nowhere in the past, only kShortContext sizes are compared. Then a past
  // request is followed only if it is at least kLeastStep requests old.
  static constexpr std::size_t kShortContext = 4;
  static constexpr std::size_t kLeastStep = 32;

  // Allocates the memory for past requests. Before that, nothing is noted or expected.
  void open();

  // Returns where a request of this size lay in the previous step; 0 where that is unknown.
  // Repeated calls without a `note` in between return the same address.
  [[nodiscard]] Address expect(Bytes size) const {
    const bool follows = is_following_ && request(followed_).size == size;
    return follows || find_again(size) ? request(followed_).address : 0;
  }
  // Returns where a request of this size lay in the previous step, and in the step before it: a
  // block that outlives its step alternates between two addresses.
  [[nodiscard]] std::array<Address, 2> expect_both(Bytes size) const;

  // Calls visit(size, address) for the requests that came after request `followed_`, at most `most`
  // times.
  template <typename Visit>
  void for_each_coming(std::size_t most, Visit visit) const {
    if (!is_following_) return;
    const std::size_t end = std::min(followed_ + 1 + most, count_);
    for (std::size_t i = followed_ + 1; i < end; ++i) visit(request(i).size, request(i).address);
  }

  // Returns whether sizes have repeated those of the previous step for kContext requests. With
  // fewer, layers of equal sizes can be mistaken for steps.
  [[nodiscard]] bool is_sure() const { return followed_for_ >= kContext; }

  // Notes where a request was served. Allocates nothing on the heap.
  void note(Bytes size, Address address) {
    if (past_.empty()) return;
    by_context_.note(size, request(count_ - kContext).size, count_);
    by_short_context_.note(size, request(count_ - kShortContext).size, count_);
    if (is_following_) is_following_ = request(followed_++).size == size;
    followed_for_ = is_following_ ? followed_for_ + 1 : 0;
    past_[count_++ % kCapacity] = {size, address};
  }

 private:
  struct Request {
    Bytes size = 0;
    Address address = 0;
  };

  // Finds the latest request by its size and the `context` sizes before it.
  template <std::size_t context>
  class Index {
   public:
    void open() { latest_.assign(std::size_t{1} << kSlotBits, 0); }
    // Returns the lowest 32 bits of n + 1, where n is the number of the latest request with this
    // size and context. Returns 0 if there is none. A slot keeps one number, so the result may
    // belong to another request whose hash falls into the same slot.
    [[nodiscard]] std::uint32_t find(Bytes size) const { return latest_[slot_of(size)]; }
    // Notes the request `number`. `oldest` is the size that leaves the context.
    void note(Bytes size, Bytes oldest, std::size_t number) {
      latest_[slot_of(size)] = static_cast<std::uint32_t>(number + 1);
      hash_.add(size, oldest);
    }

   private:
    static constexpr int kSlotBits = 14;

    [[nodiscard]] std::size_t slot_of(Bytes size) const {
      using Hash = ContextHash<context>;
      return ((hash_.value() + size) * Hash::kFactor) >> (64 - kSlotBits);
    }

    std::vector<std::uint32_t> latest_;
    ContextHash<context> hash_;
  };

  [[nodiscard]] const Request& request(std::size_t number) const {
    return past_[number % kCapacity];
  }
  // Looks for another past request to follow, because the next size is not the expected one.
  // Returns whether it found one.
  [[nodiscard]] bool find_again(Bytes size) const;
  template <std::size_t context>
  [[nodiscard]] bool find(const Index<context>& index, Bytes size, std::size_t least_step) const;

  std::vector<Request> past_;
  Index<kContext> by_context_;
  Index<kShortContext> by_short_context_;
  std::size_t count_ = 0;  // number of requests so far
  // While `is_following_`: the number of the past request that the next request should repeat.
  mutable std::size_t followed_ = 0;
  mutable bool is_following_ = false;
  mutable std::size_t followed_for_ = 0;  // requests in a row that repeated the past
};

}  // namespace plimsoll
