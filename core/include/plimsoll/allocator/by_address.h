// An allocator used by address, as programs do, rather than by block.
#pragma once

#include <stdexcept>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/base/address_map.h"

namespace plimsoll {

class UnknownAddress : public std::invalid_argument {
 public:
  explicit UnknownAddress(Address address);
};

class ByAddress {
 public:
  explicit ByAddress(Allocator& allocator) : allocator_(allocator) {}

  // As the allocator's, whose exceptions they pass on.
  [[nodiscard]] Address malloc(Bytes size, StreamId stream) {
    Block* const block = allocator_.malloc(size, stream);
    live_.insert(block->address, block);
    return block->address;
  }
  void malloc_at(Address address, Bytes size, StreamId stream, PoolId pool) {
    live_.insert(address, allocator_.malloc_at(address, size, stream, pool));
  }
  // False, and nothing is done, if no live block begins at `address`.
  [[nodiscard]] bool try_free(Address address) {
    Block* const found = find(address);
    if (found == nullptr) return false;
    allocator_.free(found);
    live_.erase(address);
    return true;
  }
  // Throws UnknownAddress instead.
  void free(Address address) {
    if (!try_free(address)) throw UnknownAddress(address);
  }

  // The live block that begins at `address`; null if there is none.
  [[nodiscard]] Block* find(Address address) const {
    Block* const* const found = live_.find(address);
    return found == nullptr ? nullptr : *found;
  }
  // Throws UnknownAddress instead.
  [[nodiscard]] Block* block(Address address) const {
    Block* const found = find(address);
    if (found == nullptr) throw UnknownAddress(address);
    return found;
  }
  // The live block that has this byte; null if there is none. Quick only for its first byte, which
  // is almost always what is asked for.
  [[nodiscard]] Block* around(Address address) const {
    if (Block* const block = find(address)) return block;
    Block* found = nullptr;
    live_.for_each([&](Address begin, Block* block) {
      if (begin <= address && address - begin < block->size) found = block;
    });
    return found;
  }

 private:
  Allocator& allocator_;
  AddressMap<Block*> live_;
};

}  // namespace plimsoll
