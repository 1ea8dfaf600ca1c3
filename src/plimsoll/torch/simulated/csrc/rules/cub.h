// Computes the bytes of temporary memory that cub's algorithms take on compute capability 9.0 with
// 64-bit offsets. A tile is the part of the input that one thread block handles at a time. Other
// chips have tiles of other sizes. This changes only the small arrays that hold a state per tile.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <initializer_list>

namespace plimsoll::simulated::cub {

// Returns the bytes of one allocation that holds several arrays. Each array is aligned to 256
// bytes. The allocation has 255 further bytes, to align the first array.
std::size_t blocks(std::initializer_list<std::size_t> sizes);
std::size_t tiles(std::size_t items, std::size_t tile);
// Returns the bytes that DeviceRadixSort takes to sort by `bits` bits of each key. `value` is the
// size of a value, or 0 if only keys are sorted.
std::size_t radix_sort(std::size_t items, std::size_t key, std::size_t value, std::size_t bits,
                       bool is_float);
// Returns the bytes of DeviceMergeSort, which Thrust uses to sort with a custom comparison. `value`
// is the size of a value, or 0 if only keys are sorted.
std::size_t merge_sort(std::size_t items, std::size_t key, std::size_t value);
// Returns the bytes of DeviceScan with a custom operator.
std::size_t scan(std::size_t items, c10::ScalarType type);
// Returns the bytes of DeviceScan::InclusiveSum of 32-bit integers.
std::size_t sum_scan(std::size_t items);
// Returns the bytes of DeviceScan::InclusiveScanByKey.
std::size_t scan_by_key(std::size_t items, std::size_t key);
// Returns the bytes of DeviceSelect::Unique.
std::size_t unique(std::size_t items, c10::ScalarType type);
// Returns the bytes of DeviceSelect::UniqueByKey.
std::size_t unique_by_key(std::size_t items);
// Returns the bytes that Thrust takes to remove all but the first of equal 64-bit keys.
std::size_t unique_by_long_key(std::size_t items);
// Returns the bytes of DeviceRunLengthEncode::Encode.
std::size_t run_lengths(std::size_t items);

}  // namespace plimsoll::simulated::cub
