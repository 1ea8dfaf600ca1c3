#include "layouts/cusparse.h"

namespace plimsoll::simulated::cusparse {
namespace {

std::size_t parts(std::int64_t elements, std::int64_t of) {
  return static_cast<std::size_t>((elements + of - 1) / of);
}

}  // namespace

std::size_t column_product_bytes(std::int64_t elements, std::int64_t columns) {
  return 4 * parts(elements, columns > 1 ? 256 : 4096) + 7;
}

std::size_t product_bytes(std::int64_t elements, std::int64_t columns, std::size_t index_bytes) {
  const std::size_t count = columns > 1 ? parts(elements, 24) : parts(elements, 3072) + 1;
  return (count + 1) * index_bytes - 1;
}

}  // namespace plimsoll::simulated::cusparse
