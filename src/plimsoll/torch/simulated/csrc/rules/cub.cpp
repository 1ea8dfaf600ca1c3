#include "rules/cub.h"

#include <algorithm>

#include "rules/rules.h"

namespace plimsoll::simulated::cub {
namespace {

// Returns the bytes of an array that holds a state of `word` bytes for each tile, and 32 further
// states (one warp).
std::size_t tile_states(std::size_t items, std::size_t tile, std::size_t word) {
  return (tiles(items, tile) + 32) * word;
}

std::size_t onesweep_tile(std::size_t key, std::size_t value, bool is_float) {
  struct Policy {
    std::size_t threads, items;
  } policy{384, value < 8 ? 30U : 24U};
  if (key == 4) {
    policy.items = value == 0 ? (is_float ? 18 : 19) : value < 8 ? 17 : 29;
  } else if (key == 2) {
    policy = value == 0 ? Policy{512, 19} : value < 8 ? Policy{512, 12} : Policy{512, 23};
  } else if (key == 1) {
    policy = value == 0 ? Policy{512, 19} : value < 8 ? Policy{512, 14} : Policy{384, 18};
  }
  const std::size_t widest = std::max({key, value, std::size_t{4}});
  return policy.threads * std::max<std::size_t>(1, policy.items * 4 / widest);
}

}  // namespace

std::size_t blocks(std::initializer_list<std::size_t> sizes) {
  std::size_t total = 255;
  for (const std::size_t size : sizes) total += round_up(size, 256);
  return total;
}

std::size_t tiles(std::size_t items, std::size_t tile) { return (items + tile - 1) / tile; }

std::size_t radix_sort(std::size_t items, std::size_t key, std::size_t value, std::size_t bits,
                       bool is_float) {
  const std::size_t widest = std::max({key, value, std::size_t{4}});
  if (items <= 256 * std::max<std::size_t>(1, 19 * 4 / widest)) return 1;
  const std::size_t passes = (bits + 7) / 8;
  const std::size_t tile = onesweep_tile(key, value, is_float);
  const std::size_t portion = ((std::size_t{1} << 28) - 1) / tile * tile;
  const std::size_t portions = tiles(items, portion);
  const std::size_t extra = passes > 1 ? items : 0;
  return blocks({portions * passes * 256 * 8, tiles(std::min(items, portion), tile) * 256 * 4,
                 extra * key, extra * value, portions * passes * 4});
}

std::size_t merge_sort(std::size_t items, std::size_t key, std::size_t value) {
  const std::size_t tile = 256 * std::max<std::size_t>(1, 17 * 4 / std::max<std::size_t>(4, key));
  return blocks({(tiles(items, tile) + 1) * 4, items * key, items * value});
}

std::size_t scan(std::size_t items, c10::ScalarType type) {
  const std::size_t size = c10::elementSize(type);
  const std::size_t tile = 128 * std::clamp<std::size_t>(15 * 4 / size, 1, 30);
  // For these types cub keeps the tiles' status and values in three separate arrays.
  if (c10::isReducedFloatingType(type) || size > 8) {
    return blocks({blocks({tile_states(items, tile, 4), tile_states(items, tile, size),
                           tile_states(items, tile, size)})});
  }
  return blocks({blocks({tile_states(items, tile, size == 8 ? 16 : size == 4 ? 8 : 4)})});
}

std::size_t sum_scan(std::size_t items) {
  return blocks({blocks({tile_states(items, 128 * 24, 8)})});
}

// The tile sizes were fitted to short inputs only.
std::size_t scan_by_key(std::size_t items, std::size_t key) {
  const std::size_t tile = key == 8 ? 224 * 10 : 288 * 14;
  return blocks({tile_states(items, tile, 16), tiles(items, tile) * key});
}

std::size_t unique(std::size_t items, c10::ScalarType type) {
  const std::size_t size = c10::elementSize(type);
  const std::size_t tile = c10::isReducedFloatingType(type) ? 128 * 10
                           : size == 8                      ? 384 * 11
                           : size == 4                      ? 384 * 17
                                                            : 256 * 22;
  return blocks({blocks({tile_states(items, tile, 8)})});
}

std::size_t unique_by_key(std::size_t items) {
  return blocks({blocks({tile_states(items, 640 * 7, 16)})});
}

std::size_t unique_by_long_key(std::size_t items) {
  return blocks({blocks({tile_states(items, 640 * 7, 8)}), 8, 8});
}

// The tile size is fitted to recordings of how much memory DeviceRunLengthEncode takes.
std::size_t run_lengths(std::size_t items) { return blocks({tile_states(items, 128 * 6, 16)}); }

}  // namespace plimsoll::simulated::cub
