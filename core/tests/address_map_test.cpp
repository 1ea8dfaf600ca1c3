#include "plimsoll/base/address_map.h"

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

using Model = std::unordered_map<Address, std::uint64_t>;

// Returns addresses as an allocator gives them: close together, in a few distant clusters.
std::vector<Address> clustered_addresses() {
  std::vector<Address> addresses;
  for (const Address cluster : {Address{512}, Address{0x7f00'0000'0000}, ~Address{0} - 4_MiB}) {
    for (Address i = 0; i < 600; ++i) addresses.push_back(cluster + i * 512);
  }
  return addresses;
}

void compare_entries(const AddressMap<std::uint64_t>& map, Model model) {
  map.for_each([&](Address address, std::uint64_t value) {
    const auto expected = model.find(address);
    CHECK(expected != model.end() && expected->second == value);
    if (expected != model.end()) model.erase(expected);
  });
  CHECK(model.empty());
}

}  // namespace

TEST(address_map_agrees_with_a_hash_map) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Random random(seed);
    std::vector<Address> addresses = clustered_addresses();
    AddressMap<std::uint64_t> map;
    Model model;
    for (int step = 0; step < 40000; ++step) {
      const bool erases_much = step / 5000 % 2 == 1;
      const Address address = random.pick(addresses);
      if (random.one_in(4) == erases_much) {
        const std::uint64_t value = random.below(1000);
        map.insert(address, value);
        model[address] = value;
      } else {
        CHECK_EQUAL(map.erase(address), model.erase(address) > 0);
      }
      CHECK_EQUAL(map.size(), model.size());
      const Address sought = random.pick(addresses);
      const std::uint64_t* const found = map.find(sought);
      const auto expected = model.find(sought);
      CHECK_EQUAL(found != nullptr, expected != model.end());
      if (found != nullptr && expected != model.end()) CHECK_EQUAL(*found, expected->second);
      if (step % 2500 == 0) compare_entries(map, model);
    }
  }
}

TEST(address_map_finds_every_entry_after_each_erase) {
  const std::vector<Address> addresses = clustered_addresses();
  AddressMap<std::uint64_t> map;
  for (const Address address : addresses) map.insert(address, address / 2);
  for (std::size_t erased = 0; erased < addresses.size(); ++erased) {
    CHECK(map.erase(addresses[erased]));
    CHECK(map.find(addresses[erased]) == nullptr);
    if (erased % 50 != 0) continue;
    for (std::size_t left = erased + 1; left < addresses.size(); ++left) {
      const std::uint64_t* const value = map.find(addresses[left]);
      CHECK(value != nullptr && *value == addresses[left] / 2);
    }
  }
  CHECK_EQUAL(map.size(), 0U);
}

TEST(address_map_replaces_the_value_of_a_known_address) {
  AddressMap<int> map;
  map.insert(4096, 1);
  map.insert(4096, 2);
  CHECK_EQUAL(map.size(), 1U);
  CHECK_EQUAL(*map.find(4096), 2);
}

}  // namespace plimsoll
