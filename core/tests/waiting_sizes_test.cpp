#include "plimsoll/allocator/elastic/books/waiting_sizes.h"

#include <map>
#include <random>

#include "check.h"

namespace plimsoll {

TEST(waiting_sizes_are_those_that_were_added_and_not_removed) {
  WaitingSizes sizes;
  std::map<Bytes, std::uint32_t> model;
  std::mt19937_64 random(3);
  for (int step = 0; step < 10000; ++step) {
    const Bytes size = 512 * (1 + random() % 40);
    if (model[size] > 0 && random() % 2 == 0) {
      sizes.remove(size);
      --model[size];
    } else {
      sizes.add(size);
      ++model[size];
    }
    CHECK_EQUAL(sizes.has(size), model[size] > 0);
    CHECK_EQUAL(sizes.count(size), model[size]);
  }
  for (const auto& [size, count] : model) {
    CHECK(sizes != WaitingSizes() || count == 0);
    for (std::uint32_t i = 0; i < count; ++i) sizes.remove(size);
    CHECK(!sizes.has(size));
  }
  CHECK(sizes == WaitingSizes());
}

}  // namespace plimsoll
