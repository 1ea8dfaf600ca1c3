// Numbers parsed from text, independently of the system and the locale.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace plimsoll {

// Reads a number. The text must contain nothing else, not even spaces or a plus sign. Returns
// nothing for other text, and for a number that the type cannot hold.
template <typename Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stopped == end ? std::optional(value) : std::nullopt;
}

template <>
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

}  // namespace plimsoll
