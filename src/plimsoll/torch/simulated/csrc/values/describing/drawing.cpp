// Random numbers.
#include "describing.h"

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
Description integers(const Operands& of) {  // random_(self, from, to), (self, to)
  const bool has_both = of.has(2) && of.call().argument(2).isInt();
  const double from = has_both ? of.number(1, 0) : 0;
  return Description::even(from, of.number(has_both ? 2 : 1, 256) - 1);
}
Description tosses(const Operands& of) {  // bernoulli(self), of chances; bernoulli_(self, p)
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

constexpr DescribeRow kDrawingDescriptions[] = {
    {"uniform", uniform},          {"rand", unit},        {"rand_like", unit},
    {"normal", normal_of},         {"randn", gauss},      {"randn_like", gauss},
    {"random", integers},          {"bernoulli", tosses}, {"native_dropout", dropped, kept},
    {"exponential", not_negative},
};

}  // namespace

std::span<const DescribeRow> drawing_descriptions() { return kDrawingDescriptions; }

}  // namespace plimsoll::simulated
