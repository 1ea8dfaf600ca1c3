#include "cusparse.h"

namespace plimsoll::simulated::cusparse {

std::size_t spmm_bytes(std::int64_t, std::int64_t, std::int64_t, c10::ScalarType) { return 0; }

std::size_t spmv_bytes(std::int64_t, std::int64_t, c10::ScalarType) { return 0; }

}  // namespace plimsoll::simulated::cusparse
