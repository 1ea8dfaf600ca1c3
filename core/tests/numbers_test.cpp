#include "plimsoll/base/numbers.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "check.h"

namespace plimsoll {

TEST(an_integer_is_the_whole_text) {
  CHECK_EQUAL(parse_number<std::uint64_t>("18446744073709551615").value(),
              std::numeric_limits<std::uint64_t>::max());
  CHECK_EQUAL(parse_number<int>("-7").value(), -7);
  for (const char* text : {"", " 7", "+7", "7 ", "7.0", "0x7", "seven", "99999999999"}) {
    CHECK(!parse_number<int>(text));
  }
  CHECK(!parse_number<std::uint64_t>("18446744073709551616"));
}

TEST(a_real_number_is_the_whole_text) {
  CHECK_EQUAL(parse_number<double>("0.8").value(), 0.8);
  CHECK_EQUAL(parse_number<double>("-.5").value(), -0.5);
  CHECK_EQUAL(parse_number<double>("6.02e+23").value(), 6.02e23);
  CHECK_EQUAL(parse_number<double>("5e-324").value(), std::numeric_limits<double>::denorm_min());
  CHECK(std::isinf(parse_number<double>("-inf").value()));
  CHECK(std::isnan(parse_number<double>("nan").value()));
  for (const char* text : {"", " 1.5", "\n1.5", "+1.5", "1.5 ", "1,5", "1.5.5", "0x1p3", "0X8", "-",
                           "e5", "1e", "half"}) {
    CHECK(!parse_number<double>(text));
  }
}

TEST(a_real_number_that_is_too_large_or_too_small_is_none) {
  CHECK(!parse_number<double>("1e999"));
  CHECK(!parse_number<double>("-1e999"));
  CHECK(!parse_number<double>("1e-999"));
}

TEST(a_number_ends_with_its_text) {
  const std::string_view text = "0.25G";
  CHECK_EQUAL(parse_number<double>(text.substr(0, 4)).value(), 0.25);
  CHECK(!parse_number<double>(std::string_view("0.25\0", 5)));
}

}  // namespace plimsoll
