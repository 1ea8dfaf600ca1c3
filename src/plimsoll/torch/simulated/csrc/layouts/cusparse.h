// The sizes of cuSPARSE's buffers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plimsoll::simulated::cusparse {

// Returns the buffer's bytes for the product of a sparse and a dense matrix. The sparse matrix has
// 32-bit indices. The dense matrix has `columns` columns and is column-major
// (CUSPARSE_SPMM_CSR_ALG1). The formula is fitted to recordings (CUDA 13.0).
std::size_t column_product_bytes(std::int64_t elements, std::int64_t columns);
// Returns the buffer's bytes for the product of a sparse matrix with a vector or with a dense
// matrix. The dense matrix may have any layout (CUSPARSE_SPMM_CSR_ALG2). Each index has
// `index_bytes` bytes.
std::size_t product_bytes(std::int64_t elements, std::int64_t columns, std::size_t index_bytes);

}  // namespace plimsoll::simulated::cusparse
