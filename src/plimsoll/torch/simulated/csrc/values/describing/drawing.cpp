// Rules for operations that draw random numbers.
#include <algorithm>
#include <cmath>

#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

Description uniform(const Operands& of) {  // uniform_(self, from, to)
  return Description::even(of.number(1, 0), of.number(2, 1));
}
Description unit(const Operands&) { return Description::even(0, 1); }
Description normal_of(const Operands& of) {  // normal_(self, mean, std)
  return Description::normal(of.number(1, 0), of.number(2, 1));
}
Description gauss(const Operands&) { return Description::normal(0, 1); }
Description whole(double low, double high) {
  Description made = Description::even(low, high);
  made.is_whole = true;
  return made;
}

// Describes random_(self, from, to), random_(self, to) and random_(self). Without `to`, the kernel
// draws up to the largest number of an integer type. For a floating-point type, it draws up to the
// power of two below which the type represents every integer.
Description integers(const Operands& of) {
  const c10::IValue& first = of.call().argument(1);
  const bool has_both = of.call().argument_count() == 4;
  const bool has_one = of.call().argument_count() == 3 && first.isInt();
  if (has_both && of.has(2)) return whole(of.number(1, 0), of.number(2, 0) - 1);
  if (has_one) return whole(0, of.number(1, 0) - 1);
  const at::ScalarType type = of.result().scalar_type();
  if (type == at::kBool) return Description::truth(0.5, true);
  const double bits = type == at::kHalf       ? 11
                      : type == at::kBFloat16 ? 8
                      : type == at::kFloat    ? 24
                      : type == at::kDouble   ? 53
                                              : 8 * static_cast<double>(of.result().itemsize()) -
                                                  (c10::isSignedType(type) ? 1 : 0);
  // If no double equals `end - 1`, the next double below `end` is the largest number.
  const double end = std::exp2(bits);
  const double last = c10::isFloatingType(type) ? end : std::min(end - 1, std::nextafter(end, 0.0));
  return whole(has_both ? of.number(1, 0) : 0, last);
}
Description tosses(const Operands& of) {  // bernoulli(self) with probabilities; bernoulli_(self, p)
  const bool is_filled = of.call().info().is_in_place();
  const Description p = !is_filled ? of[0] : of.has(1) ? of[1] : Description::constant(0.5);
  return as_result(of, Description::truth(p.is_constant() ? p.low : 0.5, p.is_constant()));
}
bool trains(const Operands& of) { return !of.has(2) || of.call().argument(2).toBool(); }

Description kept(const Operands& of) {  // native_dropout's mask: (input, p, train)
  return trains(of) ? Description::truth(1 - of.number(1, 0.5), true) : Description::constant(1);
}

Description dropped(const Operands& of) {  // (input, p, train)
  const double p = of.number(1, 0.5);
  if (!trains(of)) return of[0];
  if (p >= 1) return Description::constant(0);
  return join(linear(of[0], 1 / (1 - p), 0), Description::constant(0), 1 - p);
}

const DescribeTable kDrawingDescriptions{
    {"uniform", uniform},          {"rand", unit},        {"rand_like", unit},
    {"normal", normal_of},         {"randn", gauss},      {"randn_like", gauss},
    {"random", integers},          {"bernoulli", tosses}, {"native_dropout", dropped, kept},
    {"exponential", not_negative},
};

}  // namespace
}  // namespace plimsoll::simulated
