#include "plimsoll/allocator/elastic/repetition.h"

namespace plimsoll {

void Repetition::open() {
  if (!latest_.empty()) return;
  past_.resize(kCapacity);
  latest_.assign(std::size_t{1} << kSlotBits, 0);
}

std::array<Address, 2> Repetition::expect_both(Bytes size) {
  std::array<Address, 2> expected{expect(size), 0};
  if (!is_following_) return expected;
  const std::size_t step = count_ - followed_;
  if (followed_ < step || 2 * step > kCapacity) return expected;
  const Request& before = request(followed_ - step);
  if (before.size == size) expected[1] = before.address;
  return expected;
}

bool Repetition::find_again(Bytes size) {
  followed_for_ = 0;
  return is_following_ = find(size);
}

// The latest request of this size that came after the same sizes as the next one does.
bool Repetition::find(Bytes size) {
  if (latest_.empty()) return false;
  const std::uint32_t found = latest_[slot_of(size)];
  if (found == 0) return false;
  const std::uint32_t back = static_cast<std::uint32_t>(count_ + 1) - found;
  if (back == 0 || back + kContext > kCapacity || back + kContext > count_) return false;
  followed_ = count_ - back;
  for (std::size_t i = 1; i <= kContext; ++i) {
    if (request(followed_ - i).size != request(count_ - i).size) return false;
  }
  return request(followed_).size == size;
}

}  // namespace plimsoll
