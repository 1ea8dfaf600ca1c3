#include "plimsoll/base/numbers.h"

#ifdef __APPLE__
#include <xlocale.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>
#endif

namespace plimsoll {

template <>
std::optional<double> parse_number(std::string_view text) {
#ifdef __APPLE__
  // Before macOS 26, Apple's C++ library has std::from_chars for integers only, so this function
  // uses strtod_l. strtod_l also accepts leading spaces, a plus sign and hexadecimal digits. This
  // function refuses them, as std::from_chars does.
  constexpr std::string_view kBefore = " \t\n\v\f\r+";
  if (text.empty() || kBefore.find(text.front()) != kBefore.npos) return std::nullopt;
  if (text.find_first_of("xX") != text.npos) return std::nullopt;
  const std::string ended(text);  // strtod_l needs a terminating zero
  char* stopped = nullptr;
  errno = 0;
  const double value = strtod_l(ended.c_str(), &stopped, nullptr);  // null: the locale "C"
  if (stopped != ended.c_str() + ended.size()) return std::nullopt;
  if (errno == ERANGE && (value == 0 || std::isinf(value))) return std::nullopt;
  return value;
#else
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stopped == end ? std::optional(value) : std::nullopt;
#endif
}

}  // namespace plimsoll
