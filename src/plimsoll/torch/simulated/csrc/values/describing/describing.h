// Descriptions of results, derived from those of operands: each file of this folder has one table.
//
// A rule describes the numbers that an operation writes. Where it knows nothing, it returns
// `Description()`. A rule must never claim too much, because programs use the numbers that they
// read.
#pragma once

#include <optional>

#include "operation/call.h"
#include "operation/named_rows.h"
#include "values/known.h"
#include "values/written.h"

namespace plimsoll::simulated {

// The descriptions of a call's operands. For lists they belong to one position.
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
  // Returns the description of a tensor, or of a number.
  Description operator[](std::size_t i) const { return known(i).description; }
  [[nodiscard]] Known known(std::size_t i) const;
  // Returns an operand's description as numbers of the result's type: truth values become zeros and
  // ones.
  [[nodiscard]] Description as_numbers(std::size_t i) const;

 private:
  const Call& call_;
  const Written& written_;
};

// An operation that replaces a part of a tensor's elements, and keeps the rest.
struct Replacement {
  std::size_t kept = 0;    // the operand whose remaining elements stay
  std::size_t fresh = 0;   // the operand of the new elements
  double share = 0;        // share of the elements that is replaced
  Origin mask;             // origin of the mask; may be unknown
  bool is_turned = false;  // replaces the elements for which the condition is false
};
// Returns nothing if the operation is no replacement.
std::optional<Replacement> replacement_of(const Operands& of);

using Describe = Description (*)(const Operands&);

// A rule for an operation. A new rule is a new row of one of the tables.
struct DescribeRow {
  const char* name;           // without the prefix `_foreach_` and the suffix `_`
  Describe first;             // null: any numbers
  Describe second = nullptr;  // describes a second result
  Describe third = nullptr;
};

using DescribeTable = NamedRows<DescribeRow>;

constexpr double kNone = Description::kNone;
constexpr Describe kAny = nullptr;

// Makes a description with these bounds; a NaN is no bound.
Description bounded(double low, double high);
// Scales and shifts numbers.
Description linear(const Description& x, double factor, double shift);
// Return the share of nonzero numbers, of a description and of an operand.
double share_of(const Description& x, c10::ScalarType type);
double share(const Operands& of, std::size_t i);
// Returns truth values in the result's type: zeros and ones if the program needs numbers.
Description as_result(const Operands& of, const Description& truth);
// Returns how many elements of the first operand make one element of the result.
double reduced(const Operands& of);

// Rules that several tables use.
inline Description self(const Operands& of) { return of[0]; }
inline Description zero(const Operands&) { return Description::constant(0); }
inline Description one(const Operands&) { return Description::constant(1); }
inline Description not_negative(const Operands&) { return Description::between(0, kNone); }
inline Description not_positive(const Operands&) { return Description::between(-kNone, 0); }
// Describe the index of an element that is found along a dimension.
Description place_of_extreme(const Operands& of);
Description place_of_kth(const Operands& of);
// Describes the same numbers at other positions.
Description elsewhere(const Operands& of);
// Keeps the bounds, but not the distribution.
Description bounds(const Operands& of);

}  // namespace plimsoll::simulated
