// Describes the results of arithmetic on single elements.
#include <algorithm>
#include <cmath>

#include "values/chances.h"
#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

template <double (*F)(double)>
Description rising(const Operands& of) {  // F never falls, so it maps bounds to bounds
  const Description x = of[0];
  Description y = bounded(F(x.low), F(x.high));
  for (const Description::Atom& atom : x.atoms) {
    y.add_atom({F(atom.at), atom.share, atom.is_random});
  }
  return y;
}

double softplus(double x) { return x > 50 ? x : std::log1p(std::exp(x)); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double log_or_nothing(double x) { return x > 0 ? std::log(x) : -kNone; }
double root(double x) { return std::sqrt(std::max(x, 0.0)); }

// Describes the whole numbers to which F rounds the first operand's numbers.
template <double (*F)(double)>
Description rounded(const Operands& of) {
  Description y = rising<F>(of);
  y.is_whole = true;
  return y;
}

// Describes the remainder after a division by a positive number.
Description remainder(const Operands& of) {
  const Description by = of[1];
  if (!by.is_constant() || !(by.low > 0)) return {};
  if (of[0].is_whole && by.low == 1) return Description::constant(0);
  return Description::between(0, by.low);
}

template <int Low, int High>
Description within(const Operands&) {
  return Description::between(Low, High);
}
Description sum_of(const Description& x, const Description& y) {
  if (x.is_constant()) return linear(y, 1, x.low);
  if (y.is_constant()) return linear(x, 1, y.low);
  Description z = bounded(x.low + y.low, x.high + y.high);
  z.is_finite = x.is_finite && y.is_finite;
  z.is_whole = x.is_whole && y.is_whole;
  if (x.spread == Description::Spread::normal && y.spread == Description::Spread::normal) {
    z.spread = Description::Spread::normal;
    z.mean = x.mean + y.mean;
    z.deviation = std::hypot(x.deviation, y.deviation);
  }
  return z;
}

Description add(const Operands& of) {
  return sum_of(of.as_numbers(0), linear(of.as_numbers(1), of.number(2, 1), 0));
}

// If a program subtracts one log-probability from another, plimsoll assumes that a new and an old
// model gave them to the same event, as in reinforcement learning. Such log-probabilities hardly
// differ. plimsoll takes their difference to be normal around 0, with this standard deviation.
constexpr double kHardly = 0.01;

Description sub(const Operands& of) {
  const at::Tensor left = of.tensor(0);
  const at::Tensor right = of.tensor(1);
  const bool is_plain = of.number(2, 1) == 1;
  if (is_plain && left.defined() && right.defined() && left.is_same(right)) {
    return Description::constant(0);
  }
  const Description x = of.as_numbers(0);
  const Description y = of.as_numbers(1);
  const auto is_logarithm = [](const Description& d) {
    return !d.is_constant() && d.high <= 0 && std::isinf(d.low);
  };
  if (is_logarithm(x) && is_logarithm(y)) return Description::normal(0, kHardly);
  return sum_of(x, linear(y, -of.number(2, 1), 0));
}

Description rsub(const Operands& of) {
  return sum_of(of.as_numbers(1), linear(of.as_numbers(0), -of.number(2, 1), 0));
}
Description neg(const Operands& of) { return linear(of.as_numbers(0), -1, 0); }

Description product_of(const Description& x, const Description& y) {
  if (x.is_constant()) return linear(y, x.low, 0);
  if (y.is_constant()) return linear(x, y.low, 0);
  const auto times = [](double a, double b) { return a == 0 || b == 0 ? 0 : a * b; };
  const double corners[] = {times(x.low, y.low), times(x.low, y.high), times(x.high, y.low),
                            times(x.high, y.high)};
  Description z = bounded(*std::min_element(std::begin(corners), std::end(corners)),
                          *std::max_element(std::begin(corners), std::end(corners)));
  z.is_finite = x.is_finite && y.is_finite;
  z.is_whole = x.is_whole && y.is_whole;
  const Chance first = x.share_at(0);
  const Chance second = y.share_at(0);
  z.add_atom({0, 1 - (1 - first.share) * (1 - second.share),
              (first.share == 0 || first.is_random) && (second.share == 0 || second.is_random)});
  return z;
}

Description mul(const Operands& of) {
  const at::Tensor left = of.tensor(0);
  const at::Tensor right = of.tensor(1);
  if (left.defined() && right.defined() && left.is_same(right)) {
    Description square = Description::between(0, kNone);
    const Chance zeros = of.as_numbers(0).share_at(0);
    square.add_atom({0, zeros.share, zeros.is_random});
    return square;
  }
  return product_of(of.as_numbers(0), of.as_numbers(1));
}

Description div(const Operands& of) {
  if (of.call().argument_count() > 2) return {};  // with a rounding mode
  const Description y = of.as_numbers(1);
  if (y.is_constant() && y.low != 0) return linear(of.as_numbers(0), 1 / y.low, 0);
  if (of.as_numbers(0).low >= 0 && y.low >= 0) return Description::between(0, kNone);
  return {};
}

Description abs(const Operands& of) {
  const Description x = of[0];
  if (x.low >= 0) return x;
  Description y = bounded(std::max(0.0, -x.high), std::max(std::abs(x.low), std::abs(x.high)));
  y.is_whole = x.is_whole;
  for (const Description::Atom& atom : x.atoms) {
    y.add_atom({std::abs(atom.at), atom.share, atom.is_random});
  }
  return y;
}

Description pow(const Operands& of) {
  const double exponent = of.number(1, 1);
  const bool is_even = std::fmod(exponent, 2) == 0;
  return is_even || of[0].low >= 0 ? Description::between(0, kNone) : Description();
}

Description sign(const Operands& of) {
  const Description x = of[0];
  const Chance zeros = x.share_at(0);
  const Chance falls = chance_of_less(x, Description::constant(0), false, x.is_whole);
  Description y = Description::between(x.low >= 0 ? 0 : -1, x.high <= 0 ? 0 : 1);
  if (y.is_constant()) return y;
  y.is_whole = true;
  y.add_atom({-1, falls.share, falls.is_random});
  y.add_atom({1, std::max(1 - falls.share - zeros.share, 0.0), falls.is_random});
  y.add_atom({0, zeros.share, zeros.is_random});
  return y;
}

Description round(const Operands& of) {  // (self, *, decimals)
  const double step = std::pow(10, of.number(1, 0));
  const Description x = of[0];
  if (step == 1) return rounded<std::nearbyint>(of);
  return bounded(std::floor(x.low * step) / step, std::ceil(x.high * step) / step);
}

// Describes exponentials. If the exponents are normal with a small deviation, the exponentials are
// nearly normal.
Description exp(const Operands& of) {
  const Description x = of[0];
  if (x.spread == Description::Spread::normal && x.deviation < 0.1) {
    return Description::normal(std::exp(x.mean), std::exp(x.mean) * x.deviation);
  }
  return bounded(std::exp(x.low), std::exp(x.high));
}

Description softmax(const Operands& of) {
  Description made = Description::between(0, 1);
  const at::Tensor x = of.tensor(0);
  if (x.dim() != 0) {
    const std::int64_t dim = of.call().argument(1).toInt();
    made.sums_to_one = x.size(dim);
    made.sum_stride = of.result().stride(dim);
  }
  return made;
}

const DescribeTable kArithmeticDescriptions{
    {"add", add},
    {"sub", sub},
    {"rsub", rsub},
    {"neg", neg},
    {"mul", mul},
    {"div", div},
    {"abs", abs},
    {"pow", pow},
    {"square", not_negative},
    {"exp", exp},
    {"sqrt", rising<root>},
    {"rsqrt", not_negative},
    {"log", rising<log_or_nothing>},
    {"log1p", kAny},
    {"expm1", rising<std::expm1>},
    {"sigmoid", rising<logistic>},
    {"tanh", rising<std::tanh>},
    {"erf", rising<std::erf>},
    {"atan", rising<std::atan>},
    {"remainder", remainder},
    {"floor", rounded<std::floor>},
    {"ceil", rounded<std::ceil>},
    {"round", round},
    {"trunc", rounded<std::trunc>},
    {"sign", sign},
    {"sin", within<-1, 1>},
    {"cos", within<-1, 1>},
    {"softplus", rising<softplus>},
    {"log_sigmoid_forward", not_positive},

    {"_softmax", softmax},
    {"softmax", softmax},
    {"_log_softmax", not_positive},
};

}  // namespace
}  // namespace plimsoll::simulated
