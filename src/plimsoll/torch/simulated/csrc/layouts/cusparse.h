// cuSPARSE's buffers, by what it multiplies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated::cusparse {

// Fitted to recordings (CUDA 13.0). For so many elements, and columns of the dense matrix.
// For column-major matrices, with 32-bit indices (CUSPARSE_SPMM_CSR_ALG1).
std::size_t column_product_bytes(std::int64_t elements, std::int64_t columns);
// For any matrices, with indices of so many bytes (CUSPARSE_SPMM_CSR_ALG2), and for a vector.
std::size_t product_bytes(std::int64_t elements, std::int64_t columns, std::size_t index_bytes);

}  // namespace plimsoll::simulated::cusparse
