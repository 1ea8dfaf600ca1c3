#include "plimsoll/simulated/address_space.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr Bytes kUnit = 512;
constexpr Address kBegin = 7 * kUnit;  // aligned to a unit, and to nothing larger
constexpr std::size_t kUnits = 200;

// A simple model with which an AddressSpace must agree. It has one flag for each unit, which is
// true if the unit is free.
class Bitmap {
 public:
  Bitmap() : free_(kUnits, false) {}

  [[nodiscard]] bool is_free(Address address, Bytes size) const {
    if (address < kBegin || address + size > kBegin + kUnits * kUnit) return false;
    const auto first = free_.begin() + static_cast<std::ptrdiff_t>((address - kBegin) / kUnit);
    return std::all_of(first, first + static_cast<std::ptrdiff_t>(size / kUnit),
                       [](bool free) { return free; });
  }
  void set(Address address, Bytes size, bool free) {
    for (Bytes i = 0; i < size / kUnit; ++i) {
      free_[static_cast<std::size_t>((address - kBegin) / kUnit + i)] = free;
    }
  }
  [[nodiscard]] std::vector<Address> places(Bytes size, Bytes alignment) const {
    std::vector<Address> found;
    for (std::size_t i = 0; i < kUnits; ++i) {
      const Address address = kBegin + i * kUnit;
      if (address % alignment == 0 && is_free(address, size)) found.push_back(address);
    }
    return found;
  }

 private:
  std::vector<bool> free_;
};

using Range = std::pair<Address, Bytes>;

// Takes a random part out of a random range in use, and returns that part.
Range cut(std::vector<Range>& used, Random& random) {
  Range& range = random.pick(used);
  const auto [begin, size] = std::exchange(range, used.back());
  used.pop_back();
  const Bytes front = random.one_in(2) ? 0 : random.below(size / kUnit) * kUnit;
  const Bytes length =
      random.one_in(2) ? size - front : random.between(1, (size - front) / kUnit) * kUnit;
  if (front > 0) used.emplace_back(begin, front);
  if (front + length < size) used.emplace_back(begin + front + length, size - front - length);
  return {begin + front, length};
}

}  // namespace

TEST(address_space_agrees_with_a_bitmap) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Random random(seed);
    AddressSpace space;
    Bitmap model;
    std::vector<Range> used{{kBegin, kUnits * kUnit}};
    for (int step = 0; step < 5000; ++step) {
      const Bytes size = random.between(1, 12) * kUnit;
      const Bytes alignment = kUnit << random.below(4);
      const Address address = kBegin + random.below(kUnits) * kUnit;
      CHECK_EQUAL(space.is_free(address, size), model.is_free(address, size));

      std::optional<Address> taken;
      const std::vector<Address> places = model.places(size, alignment);
      switch (used.empty() ? random.below(3) : random.below(6)) {
        case 0:
          taken = space.take(size, alignment);
          CHECK(taken == (places.empty() ? std::nullopt : std::optional(places.front())));
          break;
        case 1:
          taken = space.take_highest(size, alignment);
          CHECK(taken == (places.empty() ? std::nullopt : std::optional(places.back())));
          break;
        case 2:
          if (space.take_at(address, size)) taken = address;
          CHECK_EQUAL(taken.has_value(), model.is_free(address, size));
          break;
        default: {
          const auto [begin, length] = cut(used, random);
          space.give(begin, length);
          model.set(begin, length, true);
        }
      }
      if (taken) {
        model.set(*taken, size, false);
        used.emplace_back(*taken, size);
      }
    }
  }
}

TEST(address_space_merges_what_is_given_back_in_any_order) {
  for (const auto& order : {std::vector<Address>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    AddressSpace space;
    for (const Address place : order) space.give(place * kUnit, kUnit);
    CHECK(space.take_at(0, 3 * kUnit));
    CHECK(!space.is_free(0, kUnit));
  }
}

TEST(address_space_hands_out_the_lowest_or_the_highest_place_that_is_aligned) {
  AddressSpace space(kUnit, 15 * kUnit);
  CHECK_EQUAL(space.take(kUnit, 4 * kUnit).value_or(0), 4 * kUnit);
  CHECK_EQUAL(space.take_highest(3 * kUnit, 4 * kUnit).value_or(0), 12 * kUnit);
  CHECK_EQUAL(space.take(3 * kUnit, kUnit).value_or(0), kUnit);
  CHECK(!space.take(8 * kUnit, kUnit));
}

}  // namespace plimsoll
