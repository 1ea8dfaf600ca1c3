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

  [[nodiscard]] Address malloc(Bytes size, StreamId stream) {
    Block* const block = allocator_.malloc(size, stream);
    live_.insert(block->address, block);
    return block->address;
  }
  // Throws UnknownAddress unless `address` came from malloc and was not freed since.
  void free(Address address) {
    Block* const found = block(address);
    allocator_.free(found);
    live_.erase(address);
  }
  [[nodiscard]] Block* block(Address address) const {
    Block* const* const found = live_.find(address);
    if (found == nullptr) throw UnknownAddress(address);
    return *found;
  }
  [[nodiscard]] std::size_t count() const { return live_.size(); }

 private:
  Allocator& allocator_;
  AddressMap<Block*> live_;
};

}  // namespace plimsoll
