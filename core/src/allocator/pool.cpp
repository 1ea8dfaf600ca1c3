#include "plimsoll/allocator/pool.h"

#include <algorithm>

namespace plimsoll {

StreamBlocks& Pool::find_or_add(StreamId stream) {
  auto place =
      std::lower_bound(streams_.begin(), streams_.end(), stream,
                       [](const auto& blocks, StreamId id) { return blocks->stream < id; });
  if (place == streams_.end() || (*place)->stream != stream) {
    place = streams_.insert(place, std::make_unique<StreamBlocks>(stream));
  }
  last_ = place->get();
  return *last_;
}

std::vector<Block*> Pool::free_blocks() const {
  std::vector<Block*> blocks;
  for (const auto& stream : streams_) {
    stream->free.for_each([&](Block* block) { blocks.push_back(block); });
  }
  return blocks;
}

Bytes Pool::free_bytes() const {
  Bytes bytes = 0;
  for (const auto& stream : streams_) {
    stream->free.for_each([&](const Block* block) { bytes += block->size; });
  }
  return bytes;
}

}  // namespace plimsoll
