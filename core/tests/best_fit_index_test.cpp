#include "plimsoll/allocator/best_fit_index.h"

#include <cstddef>
#include <deque>
#include <iterator>
#include <set>
#include <tuple>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

struct BySizeOrderAndAddress {
  bool operator()(const Block* a, const Block* b) const {
    return std::tie(a->size, a->order, a->address) < std::tie(b->size, b->order, b->address);
  }
};

// The index under test, and the model with which it must agree. Both contain the same blocks, which
// come from a fixed stock.
class Pair {
 public:
  Pair(Random& random, std::size_t stock) : random_(random), blocks_(stock) {
    for (std::size_t i = 0; i < stock; ++i) {
      blocks_[i].address = (i + 1) * kGranule;
      outside_.push_back(&blocks_[i]);
    }
  }

  [[nodiscard]] bool is_empty() const { return inside_.empty(); }
  [[nodiscard]] bool is_full() const { return outside_.empty(); }

  void insert() {
    Block* const block = take(outside_);
    block->size = random_size();
    block->order = static_cast<std::uint32_t>(random_.below(3));
    index_.insert(block);
    model_.insert(block);
    inside_.push_back(block);
  }

  void erase() {
    Block* const block = take(inside_);
    index_.erase(block);
    model_.erase(block);
    outside_.push_back(block);
  }

  void compare_lookups() {
    CHECK_EQUAL(index_.count(), model_.size());
    CHECK_EQUAL(index_.last(), model_.empty() ? nullptr : *model_.rbegin());
    Bytes size = random_size() + random_.below(3) - 1;
    if (!is_empty() && random_.one_in(2)) size = random_.pick(inside_)->size;
    Block key;
    key.size = size;
    CHECK_EQUAL(index_.lower_bound(size), at(model_.lower_bound(&key)));
    if (is_empty()) return;
    const auto held = model_.find(random_.pick(inside_));
    CHECK_EQUAL(index_.next(*held), at(std::next(held)));
    CHECK_EQUAL(index_.previous(*held), held == model_.begin() ? nullptr : *std::prev(held));
  }

  void compare_order() const {
    std::vector<Block*> visited;
    index_.for_each([&](Block* block) { visited.push_back(block); });
    CHECK(visited == std::vector<Block*>(model_.begin(), model_.end()));
  }

 private:
  using Model = std::set<Block*, BySizeOrderAndAddress>;

  [[nodiscard]] Block* at(Model::const_iterator place) const {
    return place == model_.end() ? nullptr : *place;
  }

  Block* take(std::vector<Block*>& from) {
    Block*& chosen = random_.pick(from);
    Block* const block = chosen;
    chosen = from.back();
    from.pop_back();
    return block;
  }

  // Half of the calls return one of four small sizes. The others return a size up to 2^40; one
  // in four of these sizes is a power of two.
  Bytes random_size() {
    constexpr Bytes kLargest = Bytes{1} << 40;
    if (random_.one_in(2)) return 512 * random_.between(1, 4);
    const Bytes power = Bytes{1} << random_.between(9, 40);
    if (random_.one_in(4)) return power;
    return std::min(round_up(power + random_.below(power), 512), kLargest);
  }

  Random& random_;
  std::deque<Block> blocks_;
  std::vector<Block*> inside_;
  std::vector<Block*> outside_;
  BestFitIndex index_;
  Model model_;
};

Block block_of(Bytes size, Address address) {
  Block block;
  block.size = size;
  block.address = address;
  return block;
}

}  // namespace

TEST(best_fit_index_agrees_with_an_ordered_set) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Random random(seed);
    Pair pair(random, 300);
    for (int phase = 0; phase < 8; ++phase) {  // the index fills up, drains, fills up again …
      const bool fills = phase % 2 == 0;
      for (int step = 0; step < 2000; ++step) {
        const bool inserts = pair.is_empty() || (!pair.is_full() && fills != random.one_in(4));
        inserts ? pair.insert() : pair.erase();
        pair.compare_lookups();
        if (step % 100 == 0) pair.compare_order();
      }
    }
  }
}

TEST(best_fit_index_finds_the_first_that_a_predicate_holds_for_among_so_many) {
  BestFitIndex index;
  std::deque<Block> blocks;
  for (Bytes i = 1; i <= 40; ++i) index.insert(&blocks.emplace_back(block_of(i * 1_MiB, i)));
  const auto find = [&](Bytes size, std::size_t most) {
    Block* const found =
        index.find_if(size, most, [](const Block* block) { return block->address % 10 == 0; });
    return found == nullptr ? Bytes{0} : found->size;
  };
  CHECK_EQUAL(find(1_MiB, 64), 10_MiB);
  CHECK_EQUAL(find(11_MiB, 64), 20_MiB);
  CHECK_EQUAL(find(11_MiB, 10), 20_MiB);
  CHECK_EQUAL(find(11_MiB, 9), Bytes{0});
  CHECK_EQUAL(find(41_MiB, 64), Bytes{0});
}

TEST(best_fit_index_is_empty_again_after_the_last_erase) {
  BestFitIndex index;
  Block block = block_of(512, 4096);
  index.insert(&block);
  index.erase(&block);
  CHECK_EQUAL(index.count(), 0U);
  CHECK(index.last() == nullptr);
  CHECK(index.lower_bound(1) == nullptr);
}

TEST(best_fit_index_prefers_the_lower_address_among_equal_sizes) {
  BestFitIndex index;
  Block high = block_of(2_MiB, 0x9000);
  Block low = block_of(2_MiB, 0x1000);
  Block larger = block_of(2_MiB + 512, 0x500);
  for (Block* const block : {&high, &larger, &low}) index.insert(block);
  CHECK_EQUAL(index.lower_bound(1_MiB), &low);
  CHECK_EQUAL(index.next(&low), &high);
  CHECK_EQUAL(index.next(&high), &larger);
  CHECK_EQUAL(index.previous(&high), &low);
}

TEST(best_fit_index_compares_the_order_before_the_address) {
  BestFitIndex index;
  Block high = block_of(2_MiB, 0x9000);
  Block low = block_of(2_MiB, 0x1000);
  high.order = 1;
  low.order = 2;
  for (Block* const block : {&low, &high}) index.insert(block);
  CHECK_EQUAL(index.lower_bound(2_MiB), &high);
  CHECK_EQUAL(index.next(&high), &low);
  CHECK_EQUAL(index.previous(&low), &high);
  CHECK_EQUAL(index.take(2_MiB), &high);
}

}  // namespace plimsoll
