#include "plimsoll/base/units.h"

#include <cstdio>

namespace plimsoll {

std::string format_bytes(Bytes size) {
  char text[32];
  const auto value = static_cast<double>(size);
  if (size <= kKiB) {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(size));
  } else if (size <= kMiB) {
    std::snprintf(text, sizeof text, "%.2f KiB", value / static_cast<double>(kKiB));
  } else if (size <= kGiB) {
    std::snprintf(text, sizeof text, "%.2f MiB", value / static_cast<double>(kMiB));
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", value / static_cast<double>(kGiB));
  }
  return text;
}

std::string format_address(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace plimsoll
