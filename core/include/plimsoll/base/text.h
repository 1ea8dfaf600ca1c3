// Text of a stranger's, fit for a message that may end up on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll {

// Whether it is ASCII that a terminal shows and does not obey.
[[nodiscard]] constexpr bool is_printable(char character) {
  return character >= ' ' && character <= '~';
}

// At most 80 characters, with "..." behind where there were more; '?' stands for what is not
// printable.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace plimsoll
