#include "plimsoll/base/text.h"

#include <algorithm>

namespace plimsoll {

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string result(text.substr(0, kLongest));
  std::ranges::replace_if(result, [](char character) { return !is_printable(character); }, '?');
  return text.size() > kLongest ? result + "..." : result;
}

}  // namespace plimsoll
