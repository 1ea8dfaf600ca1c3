// What results are like, by what operands are like: one table a file of this folder.
//
// A rule says what holds of the numbers that an operation writes. What it does not know may be
// anything: `Description()`. It never says more than is so, for programs go on with what they read.
#pragma once

#include <optional>

#include "operation/call.h"
#include "operation/named_rows.h"
#include "values/known.h"
#include "values/written.h"

namespace plimsoll::simulated {

// The descriptions of a call's operands; of lists, those of one place.
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
  // The description of a tensor, or of a number.
  Description operator[](std::size_t i) const { return known(i).description; }
  [[nodiscard]] Known known(std::size_t i) const;
  // The same as numbers of the result's type: truth becomes zeros and ones.
  [[nodiscard]] Description as_numbers(std::size_t i) const;

 private:
  const Call& call_;
  const Written& written_;
};

// An operation that replaces a part of a tensor's elements, and leaves the rest.
struct Replacement {
  std::size_t kept = 0;    // the operand whose other elements stay
  std::size_t fresh = 0;   // that which the new ones are of
  double share = 0;        // of the elements that are replaced
  Origin mask;             // the truth values that say which; or not known
  bool is_turned = false;  // those are replaced of which it is not true
};
// None where the operation is no such.
std::optional<Replacement> replacement_of(const Operands& of);

using Describe = Description (*)(const Operands&);

// A new rule is a new row of one of the tables.
struct DescribeRow {
  const char* name;           // without `_foreach_` before it, and `_` behind it
  Describe first;             // null: anything
  Describe second = nullptr;  // of a second result
  Describe third = nullptr;
};

using DescribeTable = NamedRows<DescribeRow>;

constexpr double kNone = Description::kNone;
constexpr Describe kAny = nullptr;

// A bound that is not a number is none.
Description bounded(double low, double high);
// Moves and stretches numbers.
Description linear(const Description& x, double factor, double shift);
// The share of numbers that is not zero; of an operand.
double share_of(const Description& x, c10::ScalarType type);
double share(const Operands& of, std::size_t i);
// Truth in the result's type: zeros and ones, where a program wants numbers.
Description as_result(const Operands& of, const Description& truth);
// How many elements of the first operand make one of the result.
double reduced(const Operands& of);

// Rules that several tables have.
inline Description self(const Operands& of) { return of[0]; }
inline Description zero(const Operands&) { return Description::constant(0); }
inline Description one(const Operands&) { return Description::constant(1); }
inline Description not_negative(const Operands&) { return Description::between(0, kNone); }
inline Description not_positive(const Operands&) { return Description::between(-kNone, 0); }
// The place of an element that was found along a dimension.
Description place_of_extreme(const Operands& of);
Description place_of_kth(const Operands& of);
// The same numbers, in other places.
Description elsewhere(const Operands& of);
// The bounds stay, but nothing is spread any more as it was.
Description bounds(const Operands& of);

}  // namespace plimsoll::simulated
