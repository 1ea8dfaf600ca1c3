// Scratch of cub's algorithms, in bytes, as tuned for compute capability 9.0 and with 64-bit
// offsets. Other chips have other tiles, which changes only the small lookback arrays.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <initializer_list>

namespace plimsoll::simulated::cub {

// Several arrays in one block: each on 256 bytes, and what aligning the first may take.
std::size_t blocks(std::initializer_list<std::size_t> sizes);
std::size_t tiles(std::size_t items, std::size_t tile);
// DeviceRadixSort over `bits` of the keys; no values: `value` is 0.
std::size_t radix_sort(std::size_t items, std::size_t key, std::size_t value, std::size_t bits,
                       bool is_float);
// DeviceMergeSort, as Thrust sorts with a comparison of the program's own; no values: `value` is 0.
std::size_t merge_sort(std::size_t items, std::size_t key, std::size_t value);
// DeviceScan with a custom operator.
std::size_t scan(std::size_t items, c10::ScalarType type);
// DeviceScan::InclusiveSum of 32-bit integers.
std::size_t sum_scan(std::size_t items);
// DeviceScan::InclusiveScanByKey
std::size_t scan_by_key(std::size_t items, std::size_t key);
// DeviceSelect::Unique
std::size_t unique(std::size_t items, c10::ScalarType type);
std::size_t unique_by_key(std::size_t items);
// As Thrust takes it, of 64-bit keys.
std::size_t unique_by_long_key(std::size_t items);
// DeviceRunLengthEncode::Encode
std::size_t run_lengths(std::size_t items);

}  // namespace plimsoll::simulated::cub
