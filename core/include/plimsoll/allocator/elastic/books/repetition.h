// The requests that a space served, in order. A program that repeats its steps gets each block
// where the step before had it, so after some steps nothing has to be mapped any more.
//
// Best fit alone moves pieces for ever: a block that outlives its step, the loss say, lies
// elsewhere in the next step, so every later choice differs a little, and other pieces have to
// move.
//
// Requests are told apart by their sizes. `followed_` is the request of the past that the next one
// repeats, as long as sizes go on as they did then. Where they do not, the latest request is looked
// up that was of the same size and came after the same sizes; after fewer of them, if a step has
// passed since, for layers look alike, and steps begin in different ways. What always holds:
//   past_[i % kCapacity] is request number i, for count_ - kCapacity <= i < count_; before the
//     first it is empty;
//   an index's hash is that of the last sizes, as many as its context has;
//   if is_following_, followed_ < count_, and request number followed_ is in the past.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

class Repetition {
 public:
  // A step of more requests is not recognised.
  static constexpr std::size_t kCapacity = std::size_t{1} << 14;
  // A request is that of the past which came after the same sizes, so many in a row.
  static constexpr std::size_t kContext = 7;
  // Fewer suffice if that request was at least `kLeastStep` requests ago.
  static constexpr std::size_t kShortContext = 4;
  static constexpr std::size_t kLeastStep = 32;

  // Makes room for the past; until then nothing is noted or expected.
  void open();

  // Where a request of this size lay in the step before; 0 where that is unknown. Several calls
  // before a `note` say the same.
  [[nodiscard]] Address expect(Bytes size) const {
    const bool follows = is_following_ && request(followed_).size == size;
    return follows || find_again(size) ? request(followed_).address : 0;
  }
  // And in the one before that, as blocks that outlive a step take turns.
  [[nodiscard]] std::array<Address, 2> expect_both(Bytes size) const;

  // The sizes and addresses of at most so many requests that came after it in the step before.
  template <typename Visit>
  void for_each_coming(std::size_t most, Visit visit) const {
    if (!is_following_) return;
    const std::size_t end = std::min(followed_ + 1 + most, count_);
    for (std::size_t i = followed_ + 1; i < end; ++i) visit(request(i).size, request(i).address);
  }

  // Whether sizes went on as in the step before for as many requests as tell one from others:
  // layers of the same sizes look like steps for a while.
  [[nodiscard]] bool is_sure() const { return followed_for_ >= kContext; }

  // The request was served. Allocates nothing.
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

  // The latest requests, by their size and the sizes before them, so many as are the context.
  template <std::size_t context>
  class Index {
   public:
    void open() { latest_.assign(std::size_t{1} << kSlotBits, 0); }
    // 1 + the number of the latest such request, or of another that shares its slot; 0 if there is
    // none. Numbers are cut to 32 bits.
    [[nodiscard]] std::uint32_t find(Bytes size) const { return latest_[slot_of(size)]; }
    // `oldest` is the size that leaves the context.
    void note(Bytes size, Bytes oldest, std::size_t number) {
      latest_[slot_of(size)] = static_cast<std::uint32_t>(number + 1);
      hash_ = hash_ * kFactor + size - oldest * kFactorOfOldest;
    }

   private:
    static constexpr int kSlotBits = 14;
    static constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;  // the hash is a polynomial in it
    static constexpr std::uint64_t kFactorOfOldest = [] {
      std::uint64_t power = 1;
      for (std::size_t i = 0; i < context; ++i) power *= kFactor;
      return power;
    }();

    [[nodiscard]] std::size_t slot_of(Bytes size) const {
      return ((hash_ + size) * kFactor) >> (64 - kSlotBits);
    }

    std::vector<std::uint32_t> latest_;
    std::uint64_t hash_ = 0;
  };

  [[nodiscard]] const Request& request(std::size_t number) const {
    return past_[number % kCapacity];
  }
  // Sizes did not go on as they did: whether there is another request to follow.
  [[nodiscard]] bool find_again(Bytes size) const;
  template <std::size_t context>
  [[nodiscard]] bool find(const Index<context>& index, Bytes size, std::size_t least_step) const;

  std::vector<Request> past_;
  Index<kContext> by_context_;
  Index<kShortContext> by_short_context_;
  std::size_t count_ = 0;  // of requests
  // The request that the last look-up found; the next look-up begins there.
  mutable std::size_t followed_ = 0;
  mutable bool is_following_ = false;
  mutable std::size_t followed_for_ = 0;  // requests in a row
};

}  // namespace plimsoll
