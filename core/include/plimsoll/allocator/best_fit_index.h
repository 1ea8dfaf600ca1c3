// The free blocks of one stream, sorted by their size, then their `order`, then their address.
// Finds the best fit in nearly constant time.
//
// Sizes fall into bins, sixteen for each power of two, and a bitmap finds the next filled bin. Each
// bin is a treap whose links are members of the blocks, so the index allocates nothing. The order
// within a bin is exact. The treap's priorities are a hash of the address, so its shape and its
// speed do not depend on the order of insertion.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "plimsoll/allocator/block.h"

namespace plimsoll {

class BestFitIndex {
 public:
  void insert(Block* block);
  void erase(Block* block);
  // Removes the first block of at least `size` bytes and returns it; null if there is none.
  Block* take(Bytes size);

  // Returns the first block of at least `size` bytes; null if there is none.
  [[nodiscard]] Block* lower_bound(Bytes size) const;
  [[nodiscard]] Block* next(const Block* block) const;
  [[nodiscard]] Block* previous(const Block* block) const;
  [[nodiscard]] Block* last() const;
  [[nodiscard]] std::size_t count() const { return count_; }

  // Calls function(Block*) in ascending order for each block of at least `size` bytes. The function
  // must not change the index.
  template <typename Function>
  void for_each(Function function, Bytes size = 0) const {
    const auto large_enough = [&](Block* block) {
      if (block->size >= size) function(block);
    };
    for (std::size_t bin = next_filled(bin_of(size)); bin < kBins; bin = next_filled(bin + 1)) {
      visit(bins_[bin], large_enough);
    }
  }

  // Looks at the first `most` blocks of at least `size` bytes. Returns the first for which
  // predicate(const Block*) holds; null if there is none.
  template <typename Predicate>
  [[nodiscard]] Block* find_if(Bytes size, std::size_t most, Predicate predicate) const {
    Block* block = lower_bound(size);
    while (block != nullptr && !predicate(block)) block = --most == 0 ? nullptr : next(block);
    return block;
  }

 private:
  void unlink(Block** link, std::size_t bin);
  static constexpr int kSubBits = 4;
  static constexpr std::size_t kBins = std::size_t{64 - kSubBits} << kSubBits;
  static constexpr std::size_t kWords = kBins / 64;

  [[nodiscard]] static std::size_t bin_of(Bytes size) {
    if (size < (Bytes{1} << kSubBits)) return 0;
    const int exponent = static_cast<int>(std::bit_width(size)) - 1;
    const auto mantissa = static_cast<std::size_t>(size >> (exponent - kSubBits)) &
                          ((std::size_t{1} << kSubBits) - 1);
    return (static_cast<std::size_t>(exponent - kSubBits) << kSubBits) + mantissa;
  }

  // Returns the first filled bin at or after `bin`; kBins if there is none.
  [[nodiscard]] std::size_t next_filled(std::size_t bin) const {
    std::size_t word = bin / 64;
    if (word >= kWords) return kBins;
    std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (bin % 64));
    while (bits == 0) {
      if (++word == kWords) return kBins;
      bits = filled_[word];
    }
    return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
  }
  [[nodiscard]] std::size_t previous_filled(std::size_t bin) const;  // strictly before `bin`

  template <typename Function>
  static void visit(Block* root, Function& function) {
    if (root == nullptr) return;
    visit(root->left, function);
    function(root);
    visit(root->right, function);
  }

  std::array<Block*, kBins> bins_{};
  std::array<std::uint64_t, kWords> filled_{};
  std::size_t count_ = 0;
};

}  // namespace plimsoll
