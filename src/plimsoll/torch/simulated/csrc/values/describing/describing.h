// Rules that describe an operation's results from the descriptions of its operands. A description
// (description.h) states bounds and a distribution of numbers that a simulation does not compute.
// Each file of this folder has a table of rules.
//
// A rule describes the numbers that an operation writes; a rule that knows nothing returns
// `Description()`. A rule must not claim more than it knows: programs read numbers that plimsoll
// draws from the descriptions.
#pragma once

#include <optional>

#include "operation/call.h"
#include "operation/named_rows.h"
#include "values/known.h"
#include "values/written.h"

namespace plimsoll::simulated {

// The descriptions of the operands from which a call computes one result. A `_foreach_` operation
// takes lists of tensors, and writes one result for each position in the lists. The operands of a
// result are then the tensors at its position.
class Operands {
 public:
  Operands(const Call& call, const Written& written) : call_(call), written_(written) {}

  [[nodiscard]] const Call& call() const { return call_; }
  [[nodiscard]] const at::Tensor& result() const { return written_.tensor; }
  [[nodiscard]] bool has(std::size_t i) const {
    return i < call_.argument_count() && !call_.argument(i).isNone();
  }
  [[nodiscard]] at::Tensor tensor(std::size_t i) const;
  [[nodiscard]] double number(std::size_t i, double otherwise) const;
  // Returns the description of an operand: a tensor or a number.
  Description operator[](std::size_t i) const { return known(i).description; }
  [[nodiscard]] Known known(std::size_t i) const;
  // Returns an operand's description after conversion to the result's type. If the result has a
  // number type, truth values become zeros and ones.
  [[nodiscard]] Description as_numbers(std::size_t i) const;

 private:
  const Call& call_;
  const Written& written_;
};

// An operation that replaces some of a tensor's elements.
struct Replacement {
  std::size_t kept = 0;    // the operand with the elements that stay
  std::size_t fresh = 0;   // the operand with the new elements
  double share = 0;        // the fraction of the elements that is replaced
  Origin mask;             // where the mask comes from; may be unknown
  bool is_turned = false;  // true: elements are replaced where the mask is false
};
// Returns how the operation replaces elements; none if it does not.
std::optional<Replacement> replacement_of(const Operands& of);

using Describe = Description (*)(const Operands&);

// A row of a rule table: the rules for an operation's results.
struct DescribeRow {
  const char* name;           // without the prefix `_foreach_` or the suffix `_`
  Describe first;             // null: nothing is known of the numbers
  Describe second = nullptr;  // for the second result
  Describe third = nullptr;
};

using DescribeTable = NamedRows<DescribeRow>;

constexpr double kNone = Description::kNone;
constexpr Describe kAny = nullptr;

// Describes numbers within these bounds; NaN means no bound.
Description bounded(double low, double high);
// Describes numbers that were multiplied by `factor` and shifted by `shift`.
Description linear(const Description& x, double factor, double shift);
// Return the share of numbers that are not zero: `share_of` among the numbers that `x` describes,
// `share` among the numbers of operand `i`.
double share_of(const Description& x, c10::ScalarType type);
double share(const Operands& of, std::size_t i);
// Describes truth values in the result's type. In a number type, they are zeros and ones.
Description as_result(const Operands& of, const Description& truth);
// Returns how many elements of the first operand are combined into one element of the result.
double reduced(const Operands& of);

// Rules that several tables use.
inline Description self(const Operands& of) { return of[0]; }
inline Description zero(const Operands&) { return Description::constant(0); }
inline Description one(const Operands&) { return Description::constant(1); }
inline Description not_negative(const Operands&) { return Description::between(0, kNone); }
inline Description not_positive(const Operands&) { return Description::between(-kNone, 0); }
// Describe the index of an extreme element, or of the k-th element, along a dimension.
Description place_of_extreme(const Operands& of);
Description place_of_kth(const Operands& of);
// Describes the first operand's numbers after they have moved to other positions.
Description elsewhere(const Operands& of);
// Describes numbers within the first operand's bounds, with an unknown distribution.
Description bounds(const Operands& of);

}  // namespace plimsoll::simulated
