#include "plimsoll/allocator/best_fit_index.h"

namespace plimsoll {
namespace {

std::uint64_t priority(const Block* block) {
  std::uint64_t hash = block->address * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  return hash * 0xD6E8FEB86659FD93u;
}

// A position in the index, whose blocks are sorted by size, then by `order`, then by address.
struct Key {
  explicit Key(Bytes bytes) : size(bytes) {}
  explicit Key(const Block* block)
      : size(block->size), order(block->order), address(block->address) {}

  Bytes size;
  std::uint32_t order = 0;
  Address address = 0;
};

bool before(const Block* a, const Key& key) {
  if (a->size != key.size) return a->size < key.size;
  if (a->order != key.order) return a->order < key.order;
  return a->address < key.address;
}

// Splits the tree in two: `low` gets the blocks before the key, and `high` gets the rest.
void split(Block* root, const Key& key, Block*& low, Block*& high) {
  Block** low_end = &low;
  Block** high_end = &high;
  while (root != nullptr) {
    if (before(root, key)) {
      *low_end = root;
      low_end = &root->right;
      root = root->right;
    } else {
      *high_end = root;
      high_end = &root->left;
      root = root->left;
    }
  }
  *low_end = nullptr;
  *high_end = nullptr;
}

// Joins two trees. All blocks of `low` come before all blocks of `high`.
Block* join(Block* low, Block* high) {
  Block* root = nullptr;
  Block** end = &root;
  while (low != nullptr && high != nullptr) {
    if (priority(low) > priority(high)) {
      *end = low;
      end = &low->right;
      low = low->right;
    } else {
      *end = high;
      end = &high->left;
      high = high->left;
    }
  }
  *end = low != nullptr ? low : high;
  return root;
}

Block* first_of(Block* root) {
  while (root != nullptr && root->left != nullptr) root = root->left;
  return root;
}

Block* last_of(Block* root) {
  while (root != nullptr && root->right != nullptr) root = root->right;
  return root;
}

// Returns the first block at or after the key.
Block* first_from(Block* root, const Key& key) {
  Block* found = nullptr;
  while (root != nullptr) {
    if (before(root, key)) {
      root = root->right;
    } else {
      found = root;
      root = root->left;
    }
  }
  return found;
}

}  // namespace

void BestFitIndex::insert(Block* block) {
  const std::size_t bin = bin_of(block->size);
  filled_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  ++count_;
  const Key key(block);
  Block** link = &bins_[bin];
  if (*link != nullptr) {
    const std::uint64_t own = priority(block);
    while (*link != nullptr && priority(*link) >= own) {
      link = before(*link, key) ? &(*link)->right : &(*link)->left;
    }
  }
  Block* const rest = *link;
  *link = block;
  if (rest == nullptr) {
    block->left = block->right = nullptr;
  } else {
    split(rest, key, block->left, block->right);
  }
}

void BestFitIndex::unlink(Block** link, std::size_t bin) {
  Block* const block = *link;
  *link = block->left == nullptr    ? block->right
          : block->right == nullptr ? block->left
                                    : join(block->left, block->right);
  block->left = block->right = nullptr;
  --count_;
  if (bins_[bin] == nullptr) filled_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
}

void BestFitIndex::erase(Block* block) {
  const std::size_t bin = bin_of(block->size);
  const Key key(block);
  Block** link = &bins_[bin];
  while (*link != block) {
    link = before(*link, key) ? &(*link)->right : &(*link)->left;
  }
  unlink(link, bin);
}

Block* BestFitIndex::take(Bytes size) {
  std::size_t bin = bin_of(size);
  Block** found = nullptr;
  for (Block** link = &bins_[bin]; *link != nullptr;) {
    if ((*link)->size < size) {
      link = &(*link)->right;
    } else {
      found = link;
      link = &(*link)->left;
    }
  }
  if (found == nullptr) {
    bin = next_filled(bin + 1);
    if (bin == kBins) return nullptr;
    found = &bins_[bin];
    while ((*found)->left != nullptr) found = &(*found)->left;
  }
  Block* const block = *found;
  unlink(found, bin);
  return block;
}

Block* BestFitIndex::lower_bound(Bytes size) const {
  const std::size_t bin = bin_of(size);
  if (bins_[bin] != nullptr) {
    if (Block* const found = first_from(bins_[bin], Key(size))) return found;
  }
  const std::size_t filled = next_filled(bin + 1);
  return filled < kBins ? first_of(bins_[filled]) : nullptr;
}

Block* BestFitIndex::next(const Block* block) const {
  const std::size_t bin = bin_of(block->size);
  Key key(block);
  ++key.address;
  if (Block* const found = first_from(bins_[bin], key)) return found;
  const std::size_t filled = next_filled(bin + 1);
  return filled < kBins ? first_of(bins_[filled]) : nullptr;
}

std::size_t BestFitIndex::previous_filled(std::size_t bin) const {
  while (bin-- > 0) {
    if (bins_[bin] != nullptr) return bin;
  }
  return kBins;
}

Block* BestFitIndex::previous(const Block* block) const {
  const std::size_t bin = bin_of(block->size);
  const Key key(block);
  Block* found = nullptr;
  for (Block* root = bins_[bin]; root != nullptr;) {
    if (before(root, key)) {
      found = root;
      root = root->right;
    } else {
      root = root->left;
    }
  }
  if (found != nullptr) return found;
  const std::size_t filled = previous_filled(bin);
  return filled < kBins ? last_of(bins_[filled]) : nullptr;
}

Block* BestFitIndex::last() const {
  const std::size_t filled = previous_filled(kBins);
  return filled < kBins ? last_of(bins_[filled]) : nullptr;
}

}  // namespace plimsoll
