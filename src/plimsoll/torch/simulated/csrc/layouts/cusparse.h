// cuSPARSE's buffers, by what it multiplies.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated::cusparse {

// For a sparse matrix of so many rows and elements, and so many columns of a dense one.
std::size_t spmm_bytes(std::int64_t rows, std::int64_t elements, std::int64_t columns,
                       c10::ScalarType type);
// The same, and a vector.
std::size_t spmv_bytes(std::int64_t rows, std::int64_t elements, c10::ScalarType type);

}  // namespace plimsoll::simulated::cusparse
