#include "plimsoll/base/flat_map.h"

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

using Model = std::map<Address, std::uint64_t>;

template <typename Map>
std::ptrdiff_t place_of(Map& map, decltype(map.begin()) entry) {
  return std::distance(map.begin(), entry);
}

}  // namespace

TEST(flat_map_agrees_with_a_tree) {
  Random random(7);
  FlatMap<std::uint64_t> map;
  Model model;
  for (int step = 0; step < 20000; ++step) {
    const bool erases_much = step / 2500 % 2 == 1;
    const Address address = random.below(400) * 512;
    if (random.one_in(4) == erases_much) {
      const std::uint64_t value = random.below(1000);
      map[address] = value;
      model[address] = value;
    } else if (const auto found = map.find(address); found != map.end()) {
      CHECK_EQUAL(found->second, model.at(address));
      map.erase(found);
      model.erase(address);
    } else {
      CHECK(!model.contains(address));
    }
    const Address asked = random.below(400 * 512);
    CHECK_EQUAL(place_of(map, map.lower_bound(asked)), place_of(model, model.lower_bound(asked)));
    CHECK_EQUAL(place_of(map, map.upper_bound(asked)), place_of(model, model.upper_bound(asked)));
    if (step % 500 != 0) continue;
    auto expected = model.begin();
    for (const auto& [each, value] : map) {
      CHECK(expected != model.end() && each == expected->first && value == expected->second);
      if (expected != model.end()) ++expected;
    }
    CHECK(expected == model.end());
  }
}

TEST(flat_map_holds_what_cannot_be_copied) {
  FlatMap<std::unique_ptr<int>> map;
  for (const int value : {3, 1, 2}) map[Address(value)] = std::make_unique<int>(value);
  int next = 1;
  for (const auto& [address, value] : map) CHECK_EQUAL(*value, next++);
  CHECK(map[4] == nullptr);
}

}  // namespace plimsoll
