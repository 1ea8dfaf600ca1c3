// The sizes of cuSPARSE's buffers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated::cusparse {

// Returns the buffer's bytes for a product with a dense column-major matrix of `columns` columns,
// with 32-bit indices (CUSPARSE_SPMM_CSR_ALG1). Fitted to recordings (CUDA 13.0).
std::size_t column_product_bytes(std::int64_t elements, std::int64_t columns);
// Returns the buffer's bytes for a product with a vector, or with a dense matrix in any layout
// (CUSPARSE_SPMM_CSR_ALG2). Each index has `index_bytes` bytes.
std::size_t product_bytes(std::int64_t elements, std::int64_t columns, std::size_t index_bytes);

}  // namespace plimsoll::simulated::cusparse
