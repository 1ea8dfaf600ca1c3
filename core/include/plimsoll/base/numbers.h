// Numbers from text, read the same way on every system and in every country.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace plimsoll {

// The number that the whole text is: neither spaces nor a plus before it, and nothing behind it.
// None for other text, and for a number that the type does not have.
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
