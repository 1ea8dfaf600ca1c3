// Makes text from outside safe for a message that may be printed on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll {

// Returns whether the character is ASCII, and not a control character.
[[nodiscard]] constexpr bool is_printable(char character) {
  return character >= ' ' && character <= '~';
}

// Returns the text with '?' in place of each unprintable character. If the text is longer than 80
// characters, returns the first 80 and "...".
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace plimsoll
