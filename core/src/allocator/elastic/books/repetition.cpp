#include "plimsoll/allocator/elastic/books/repetition.h"

namespace plimsoll {

void Repetition::open() {
  if (!past_.empty()) return;
  past_.resize(kCapacity);
  by_context_.open();
  by_short_context_.open();
}

std::array<Address, 2> Repetition::expect_both(Bytes size) const {
  std::array<Address, 2> expected{expect(size), 0};
  if (!is_following_) return expected;
  const std::size_t step = count_ - followed_;
  if (followed_ < step || 2 * step > kCapacity) return expected;
  const Request& before = request(followed_ - step);
  if (before.size == size) expected[1] = before.address;
  return expected;
}

bool Repetition::find_again(Bytes size) const {
  followed_for_ = 0;
  if (past_.empty()) return false;
  return is_following_ = find(by_context_, size, 1) || find(by_short_context_, size, kLeastStep);
}

// Looks for the latest request of this size in the same context: the `context` requests before it
// must have the sizes of the most recent `context` requests. Sets `followed_` to the request found.
// Returns false if there is no such request, or if it is fewer than `least_step` requests old.
template <std::size_t context>
bool Repetition::find(const Index<context>& index, Bytes size, std::size_t least_step) const {
  const std::uint32_t found = index.find(size);
  if (found == 0) return false;
  const std::uint32_t back = static_cast<std::uint32_t>(count_ + 1) - found;
  if (back < least_step || back + context > kCapacity || back + context > count_) return false;
  followed_ = count_ - back;
  for (std::size_t i = 1; i <= context; ++i) {
    if (request(followed_ - i).size != request(count_ - i).size) return false;
  }
  return request(followed_).size == size;
}

}  // namespace plimsoll
