// Rules for truth values: comparisons, and operations on their results.
#include <optional>
#include <unordered_map>

#include "values/chances.h"
#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

Description never(const Operands& of) {
  const Description x = of[0];
  if (x.is_finite) return Description::constant(0);
  const double infinite = x.share_at(kNone).share + x.share_at(-kNone).share;
  return infinite > 0 ? Description::truth(infinite) : Description::truth(0.5);
}
Description always(const Operands& of) {
  const Description x = never(of);
  return x.is_constant() ? Description::constant(1 - x.low) : Description::truth(1 - x.mean);
}

bool are_same(const Operands& of) {
  const at::Tensor left = of.tensor(0);
  const at::Tensor right = of.tensor(1);
  if (!left.defined() || !right.defined()) return false;
  if (left.is_same(right)) return true;
  return left.is_alias_of(right) && left.storage_offset() == right.storage_offset() &&
         left.sizes() == right.sizes() && left.strides() == right.strides();
}

// Describes a number that a program compares with `other`. A single number of which nothing is
// known counts as positive if `other` is a tolerance. Programs test so whether a curvature is large
// enough to divide by, and made-up numbers are positive (draw_one in description.cpp).
Description compared(const Operands& of, Description x, const Description& other) {
  const bool is_unknown = x.spread == Description::Spread::data && x.low == -Description::kNone &&
                          x.high == Description::kNone;
  const bool is_tolerance = other.is_constant() && other.low > 0 && other.low <= kAlmostZero;
  if (is_unknown && is_tolerance && of.result().numel() == 1) x.low = 0;
  return x;
}

Description compare(const Operands& of, bool turned, bool or_equal) {
  if (are_same(of) && of[0].is_finite) return Description::constant(or_equal ? 1 : 0);
  const Description x = compared(of, of[turned ? 1 : 0], of[turned ? 0 : 1]);
  const Description y = compared(of, of[turned ? 0 : 1], of[turned ? 1 : 0]);
  const auto is_integer = [&](std::size_t i) {
    const at::Tensor tensor = of.tensor(i);
    return !tensor.defined() || of[i].is_whole ||
           c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  };
  const bool is_single = of.result().numel() == 1;
  return as_result(of, Description::truth(chance_of_less(
                           x, y, or_equal, is_integer(0) && is_integer(1), is_single)));
}
Description lt(const Operands& of) { return compare(of, false, false); }
Description le(const Operands& of) { return compare(of, false, true); }
Description gt(const Operands& of) { return compare(of, true, false); }
Description ge(const Operands& of) { return compare(of, true, true); }

// Counts how often each number of a host tensor occurs.
std::unordered_map<std::int64_t, double> count_numbers(const at::Tensor& values) {
  std::unordered_map<std::int64_t, double> counts;
  const at::Tensor flat = values.to(at::kLong).reshape({-1});
  const auto* const numbers = flat.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) ++counts[numbers[i]];
  return counts;
}

// Returns the share of equal pairs if the call compares every number of the first operand with
// every number of the second operand. A program compares labels like this, for example. Returns
// nothing if the call compares other pairs, or if the numbers are unknown, many or not integers.
std::optional<double> equal_pairs(const Operands& of) {
  constexpr std::int64_t kMost = std::int64_t{1} << 16;
  const at::Tensor sides[] = {of.tensor(0), of.tensor(1)};
  for (const at::Tensor& side : sides) {
    const bool is_known = side.defined() && side.is_cuda() && side.numel() <= kMost &&
                          c10::isIntegralType(side.scalar_type(), /*includeBool=*/false) &&
                          source_of(side) <= Source::random && can_be_read(side);
    if (!is_known) return std::nullopt;
  }
  const at::Tensor result = of.result();
  if (sides[0].numel() * sides[1].numel() != result.numel()) return std::nullopt;
  const at::Tensor values[] = {read_values(sides[0]), read_values(sides[1])};
  if (!values[0].defined() || !values[1].defined()) return std::nullopt;
  const auto first = count_numbers(values[0]);
  const auto second = count_numbers(values[1]);
  double equal = 0;
  for (const auto& [number, count] : first) {
    const auto place = second.find(number);
    if (place != second.end()) equal += count * place->second;
  }
  return equal / static_cast<double>(result.numel());
}

Chance chance_that_equal(const Operands& of) {
  if (are_same(of) && of[0].is_finite) return {1, true};
  if (const auto pairs = equal_pairs(of)) return {*pairs, true};
  return chance_of_equal(of[0], of[1], of.tensor(0).scalar_type());
}
Description eq(const Operands& of) {
  return as_result(of, Description::truth(chance_that_equal(of)));
}
Description ne(const Operands& of) {
  const Chance same = chance_that_equal(of);
  return as_result(of, Description::truth(1 - same.share, same.is_random));
}

Description both(const Operands& of) {
  return Description::truth(share(of, 0) * share(of, 1), is_random_pair(of[0], of[1]));
}
Description either(const Operands& of) {
  const double neither = (1 - share(of, 0)) * (1 - share(of, 1));
  return Description::truth(1 - neither, is_random_pair(of[0], of[1]));
}
Description one_of_both(const Operands& of) {
  const double first = share(of, 0);
  const double second = share(of, 1);
  return Description::truth(first * (1 - second) + second * (1 - first),
                            is_random_pair(of[0], of[1]));
}
Description not_so(const Operands& of) {
  return Description::truth(1 - share(of, 0), of[0].is_random());
}
template <Describe OfTruth, Describe Otherwise>
Description bitwise(const Operands& of) {
  return of.result().scalar_type() == at::kBool ? OfTruth(of) : Otherwise(of);
}
Description unknown_integer(const Operands&) { return {}; }

const DescribeTable kTruthDescriptions{
    {"lt", lt},
    {"le", le},
    {"gt", gt},
    {"ge", ge},
    {"eq", eq},
    {"ne", ne},
    {"isnan", never},
    {"isinf", never},
    {"isposinf", zero},
    {"isneginf", zero},
    {"isfinite", always},
    {"isclose", one},
    {"logical_and", both},
    {"logical_or", either},
    {"logical_xor", one_of_both},
    {"logical_not", not_so},
    {"bitwise_and", bitwise<both, unknown_integer>},
    {"bitwise_or", bitwise<either, unknown_integer>},
    {"bitwise_xor", bitwise<one_of_both, unknown_integer>},
    {"bitwise_not", bitwise<not_so, unknown_integer>},
};

}  // namespace
}  // namespace plimsoll::simulated
