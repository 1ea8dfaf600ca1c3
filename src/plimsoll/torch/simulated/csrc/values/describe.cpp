#include "describe.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_map>

#include "../tensors.h"

namespace plimsoll::simulated {
namespace {

using Spread = Description::Spread;
constexpr double kNone = Description::kNone;

// The descriptions of a call's operands; of lists, those of one place.
class Operands {
 public:
  Operands(const Call& call, const Written& written) : call_(call), written_(written) {}

  [[nodiscard]] const Call& call() const { return call_; }
  [[nodiscard]] const at::Tensor& result() const { return written_.tensor; }
  [[nodiscard]] bool has(std::size_t i) const {
    return i < call_.argument_count() && !call_.argument(i).isNone();
  }
  [[nodiscard]] at::Tensor tensor(std::size_t i) const {
    if (!has(i)) return {};
    const c10::IValue& value = call_.argument(i);
    if (value.isTensor()) return value.toTensor();
    if (!value.isTensorList()) return {};
    const std::vector<at::Tensor> list = value.toTensorVector();
    return written_.element < list.size() ? list[written_.element] : at::Tensor();
  }
  [[nodiscard]] double number(std::size_t i, double otherwise) const {
    if (!has(i)) return otherwise;
    const c10::IValue& value = call_.argument(i);
    if (!value.isScalar()) return otherwise;
    const c10::Scalar scalar = value.toScalar();
    return scalar.isComplex() ? otherwise : scalar.toDouble();
  }
  // Of a tensor, or a number.
  Description operator[](std::size_t i) const { return known(i).description; }
  [[nodiscard]] Known known(std::size_t i) const {
    if (const at::Tensor one = tensor(i); one.defined()) {
      if (is_simulated(one)) return known_of(one);
      const bool is_number = one.is_cpu() && one.dim() == 0 && !one.is_complex();
      return {Source::computed, is_number ? Description::constant(one.item().toDouble())
                                          : Description::of_type(one.scalar_type())};
    }
    const double value = number(i, std::nan(""));
    if (std::isfinite(value)) return {Source::computed, Description::constant(value)};
    Known known{Source::computed, std::isinf(value) ? Description::constant(value) : Description()};
    known.description.is_finite = !has(i) || !call_.argument(i).isScalar();
    return known;
  }

 private:
  const Call& call_;
  const Written& written_;
};

using Describe = Description (*)(const Operands&);

Description bounded(double low, double high) {
  return {std::isnan(low) ? -kNone : low, std::isnan(high) ? kNone : high};
}

// --- numbers -------------------------------------------------------------------------------------

template <double (*F)(double)>
Description rising(const Operands& of) {  // never falls, so that bounds stay bounds
  return bounded(F(of[0].low), F(of[0].high));
}

double relu(double x) { return std::max(x, 0.0); }
double softplus(double x) { return x > 50 ? x : std::log1p(std::exp(x)); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double log_or_nothing(double x) { return x > 0 ? std::log(x) : -kNone; }
double root(double x) { return std::sqrt(std::max(x, 0.0)); }

Description never(const Operands& of) {
  return of[0].is_finite ? Description::constant(0) : Description::truth(0.5);
}
Description always(const Operands& of) {
  return of[0].is_finite ? Description::constant(1) : Description::truth(0.5);
}

template <int Low, int High>
Description within(const Operands&) {
  return Description::between(Low, High);
}
Description not_negative(const Operands&) { return Description::between(0, kNone); }
Description not_positive(const Operands&) { return Description::between(-kNone, 0); }
Description self(const Operands& of) { return of[0]; }
// The same numbers, in other places.
Description elsewhere(const Operands& of) {
  Description x = of[0];
  x.sums_to_one = 0;
  x.per_row = 1;
  return x;
}
Description zero(const Operands&) { return Description::constant(0); }
Description one(const Operands&) { return Description::constant(1); }

// Moves and stretches a spread that a generator made.
Description linear(const Description& x, double factor, double shift) {
  Description y = bounded(factor * x.low + shift, factor * x.high + shift);
  if (factor < 0) std::swap(y.low, y.high);
  if (x.is_random()) {
    y.spread = x.spread;
    y.mean = factor * x.mean + shift;
    y.deviation = std::abs(factor) * x.deviation;
  }
  return y;
}

Description sum_of(const Description& x, const Description& y) {
  if (x.is_constant()) return linear(y, 1, x.low);
  if (y.is_constant()) return linear(x, 1, y.low);
  Description z = bounded(x.low + y.low, x.high + y.high);
  if (x.spread == Spread::normal && y.spread == Spread::normal) {
    z.spread = Spread::normal;
    z.mean = x.mean + y.mean;
    z.deviation = std::hypot(x.deviation, y.deviation);
  }
  return z;
}

Description add(const Operands& of) { return sum_of(of[0], linear(of[1], of.number(2, 1), 0)); }

// New less old logarithms of the same chances hardly differ.
constexpr double kHardly = 0.01;

Description sub(const Operands& of) {
  const at::Tensor left = of.tensor(0);
  const at::Tensor right = of.tensor(1);
  const bool is_plain = of.number(2, 1) == 1;
  if (is_plain && left.defined() && right.defined() && left.is_same(right)) {
    return Description::constant(0);
  }
  const Description x = of[0];
  const Description y = of[1];
  const auto is_logarithm = [](const Description& d) {
    return !d.is_constant() && d.high <= 0 && std::isinf(d.low);
  };
  if (is_logarithm(x) && is_logarithm(y)) return Description::normal(0, kHardly);
  return sum_of(x, linear(y, -of.number(2, 1), 0));
}

Description rsub(const Operands& of) { return sum_of(of[1], linear(of[0], -of.number(2, 1), 0)); }
Description neg(const Operands& of) { return linear(of[0], -1, 0); }

Description product_of(const Description& x, const Description& y) {
  if (x.is_constant()) return linear(y, x.low, 0);
  if (y.is_constant()) return linear(x, y.low, 0);
  const auto times = [](double a, double b) { return a == 0 || b == 0 ? 0 : a * b; };
  const double corners[] = {times(x.low, y.low), times(x.low, y.high), times(x.high, y.low),
                            times(x.high, y.high)};
  return bounded(*std::min_element(std::begin(corners), std::end(corners)),
                 *std::max_element(std::begin(corners), std::end(corners)));
}

Description mul(const Operands& of) {
  const at::Tensor left = of.tensor(0);
  const at::Tensor right = of.tensor(1);
  if (left.defined() && right.defined() && left.is_same(right)) {
    return Description::between(0, kNone);
  }
  return product_of(of[0], of[1]);
}

Description div(const Operands& of) {
  if (of.call().argument_count() > 2) return {};  // rounded
  const Description y = of[1];
  if (y.is_constant() && y.low != 0) return linear(of[0], 1 / y.low, 0);
  if (of[0].low >= 0 && y.low >= 0) return Description::between(0, kNone);
  return {};
}

Description abs(const Operands& of) {
  const Description x = of[0];
  if (x.low >= 0) return x;
  return bounded(std::max(0.0, -x.high), std::max(std::abs(x.low), std::abs(x.high)));
}

Description pow(const Operands& of) {
  const double exponent = of.number(1, 1);
  const bool is_even = std::fmod(exponent, 2) == 0;
  return is_even || of[0].low >= 0 ? Description::between(0, kNone) : Description();
}

// Around one, where what it is the exponential of is hardly different from zero.
Description exp(const Operands& of) {
  const Description x = of[0];
  if (x.spread == Spread::normal && x.deviation < 0.1) {
    return Description::normal(std::exp(x.mean), std::exp(x.mean) * x.deviation);
  }
  return bounded(std::exp(x.low), std::exp(x.high));
}

Description clamp(const Operands& of) {
  const double low = of.has(1) ? of[1].low : -kNone;
  const double high = of.has(2) ? of[2].high : kNone;
  if (of.tensor(1).defined() || of.tensor(2).defined()) return {};
  Description x = of[0];
  if (x.low >= low && x.high <= high) return x;
  return bounded(std::clamp(x.low, low, std::max(low, high)),
                 std::clamp(x.high, low, std::max(low, high)));
}
Description clamp_min(const Operands& of) {
  return bounded(std::max(of[0].low, of[1].low), std::max(of[0].high, of[1].high));
}
Description clamp_max(const Operands& of) {
  return bounded(std::min(of[0].low, of[1].low), std::min(of[0].high, of[1].high));
}
Description larger(const Operands& of) {
  return bounded(std::max(of[0].low, of[1].low), std::max(of[0].high, of[1].high));
}
Description smaller(const Operands& of) {
  return bounded(std::min(of[0].low, of[1].low), std::min(of[0].high, of[1].high));
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

// --- several to one ------------------------------------------------------------------------------

// How many elements of the first operand make one of the result.
double reduced(const Operands& of) {
  const auto results = static_cast<double>(std::max<std::int64_t>(of.result().numel(), 1));
  return static_cast<double>(of.tensor(0).numel()) / results;
}

// The bounds stay, but nothing is spread any more as it was.
Description bounds(const Operands& of) {
  const Description x = of[0];
  return x.is_constant() ? x : bounded(x.low, x.high);
}

// Whether the one dimension that is summed is that of the rows.
bool sums_rows(const Operands& of, const Description& x) {
  if (!of.has(1) || !of.call().argument(1).isIntList()) return false;
  const std::vector<std::int64_t> dims = of.call().argument(1).toIntVector();
  return dims.size() == 1 && of.tensor(0).stride(dims[0]) == x.sum_stride;
}

Description sum(const Operands& of) {
  const Description x = of[0];
  const double count = reduced(of);
  if (x.sums_to_one != 0 && static_cast<double>(x.sums_to_one) == count && sums_rows(of, x)) {
    return Description::constant(1);
  }
  if (x.is_constant()) return Description::constant(x.low * count);
  const at::Tensor from = of.tensor(0);
  if (from.scalar_type() == at::kBool) {
    return Description::counted(x.mean * count, count, x.is_random());  // data may say anything
  }
  if (x.spread == Spread::normal) {
    return Description::normal(x.mean * count, x.deviation * std::sqrt(count));
  }
  return bounded(x.low >= 0 ? 0 : -kNone, x.high <= 0 ? 0 : kNone);
}

Description running_sum(const Operands& of) {  // (self, dim)
  const at::Tensor from = of.tensor(0);
  const Description x = of[0];
  if (x.is_constant() && x.low == 0) return x;
  const auto count =
      from.dim() == 0 ? 1.0 : static_cast<double>(from.size(of.call().argument(1).toInt()));
  return bounded(std::min(x.low, x.low * count), std::max(x.high, x.high * count));
}

Description mean(const Operands& of) {
  const Description x = of[0];
  if (x.is_constant()) return x;
  if (x.spread == Spread::normal) {
    return Description::normal(x.mean, x.deviation / std::sqrt(reduced(of)));
  }
  return bounded(x.low, x.high);
}

// The share of what is not zero.
double share(const Operands& of, std::size_t i) {
  constexpr double kNearlyAll = 1 - 1e-9;
  const Description x = of[i];
  if (x.is_constant()) return x.low != 0 ? 1 : 0;
  if (x.low > 0 || x.high < 0) return 1;
  const at::Tensor tensor = of.tensor(i);
  if (!tensor.defined() || tensor.scalar_type() == at::kBool) return x.mean;
  if (!c10::isIntegralType(tensor.scalar_type(), false)) return kNearlyAll;
  const double values = x.high - x.low + 1;
  return std::isfinite(values) ? 1 - 1 / values : 0.5;
}

// Of truth values. Where only data says how many are true: programs ask whether all are finite, or
// in range.
// Of data, such as zeros among numbers.
constexpr double kHardlyAny = 1e-9;

Description all(const Operands& of) {
  const Description x = of[0];
  if (x.is_constant()) return Description::constant(x.low != 0 ? 1 : 0);
  if (x.is_random()) return Description::truth(std::pow(share(of, 0), reduced(of)), true);
  return Description::likely(share(of, 0) < kHardlyAny ? 0 : 1);
}
Description any(const Operands& of) {
  const Description x = of[0];
  if (x.is_constant()) return Description::constant(x.low != 0 ? 1 : 0);
  if (x.is_random()) return Description::truth(1 - std::pow(1 - share(of, 0), reduced(of)), true);
  return Description::likely(share(of, 0) < kHardlyAny ? 0 : 1);
}

// --- choices -------------------------------------------------------------------------------------

std::int64_t size_of(const Operands& of, std::size_t dim_argument) {
  const at::Tensor x = of.tensor(0);
  if (x.dim() == 0) return 1;
  if (!of.has(dim_argument)) return std::max<std::int64_t>(x.numel(), 1);
  return std::max<std::int64_t>(x.size(of.call().argument(dim_argument).toInt()), 1);
}

Description place_of_extreme(const Operands& of) { return Description::chosen(size_of(of, 1)); }
Description place_of_kth(const Operands& of) { return Description::chosen(size_of(of, 2)); }
Description places_of_largest(const Operands& of) {  // topk: (self, k, dim)
  const std::int64_t count = size_of(of, 2);
  const std::int64_t k = of.call().argument(1).toInt();
  const at::Tensor x = of.tensor(0);
  const bool is_last = x.dim() == 0 || of.call().argument(2).toInt() % x.dim() == x.dim() - 1 ||
                       of.call().argument(2).toInt() == -1;
  return Description::chosen(count, is_last ? k : 1);
}
Description order(const Operands& of) {  // a permutation of each row
  const at::Tensor x = of.tensor(0);
  const std::int64_t count = x.dim() == 0 ? 1 : std::max<std::int64_t>(x.size(-1), 1);
  return Description::chosen(count, count);
}
Description samples(const Operands& of) {  // multinomial: (self, num_samples, replacement)
  const bool again = of.call().argument(2).toBool();
  const std::int64_t count = size_of(of, 99);
  const at::Tensor x = of.tensor(0);
  const std::int64_t classes = x.dim() == 0 ? count : x.size(-1);
  return Description::chosen(classes, again ? 1 : of.call().argument(1).toInt());
}

// --- random --------------------------------------------------------------------------------------

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
Description tosses(const Operands& of) {  // bernoulli_(self, p)
  const Description p = of.has(1) ? of[1] : Description::constant(0.5);
  return Description::truth(p.is_constant() ? p.low : 0.5, p.is_constant());
}
Description tosses_by(const Operands& of) {  // bernoulli(self): the chances
  const Description p = of[0];
  return Description::truth(p.is_constant() ? p.low : 0.5, p.is_constant());
}
Description kept(const Operands& of) {  // native_dropout's mask: (input, p, train)
  return Description::truth(1 - of.number(1, 0.5), true);
}

// What a division by a positive number leaves.
Description remainder(const Operands& of) {
  const Description by = of[1];
  if (!by.is_constant() || !(by.low > 0)) return {};
  if (of[0].is_whole && by.low == 1) return Description::constant(0);
  return Description::between(0, by.low);
}

// --- truth ---------------------------------------------------------------------------------------

bool are_same(const Operands& of) {
  const at::Tensor left = of.tensor(0);
  const at::Tensor right = of.tensor(1);
  if (!left.defined() || !right.defined()) return false;
  if (left.is_same(right)) return true;
  return left.is_alias_of(right) && left.storage_offset() == right.storage_offset() &&
         left.sizes() == right.sizes() && left.strides() == right.strides();
}

Description compare(const Operands& of, bool turned, bool or_equal) {
  if (are_same(of) && of[0].is_finite) return Description::constant(or_equal ? 1 : 0);
  const Description x = of[turned ? 1 : 0];
  const Description y = of[turned ? 0 : 1];
  const auto is_integer = [&](std::size_t i) {
    const at::Tensor tensor = of.tensor(i);
    return !tensor.defined() || c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  };
  const double chance = chance_of_less(x, y, or_equal, is_integer(0) && is_integer(1));
  return Description::truth(chance, is_random_pair(x, y));
}
Description lt(const Operands& of) { return compare(of, false, false); }
Description le(const Operands& of) { return compare(of, false, true); }
Description gt(const Operands& of) { return compare(of, true, false); }
Description ge(const Operands& of) { return compare(of, true, true); }

double chance_that_equal(const Operands& of) {
  if (are_same(of) && of[0].is_finite) return 1;
  return chance_of_equal(of[0], of[1], of.tensor(0).scalar_type());
}
Description eq(const Operands& of) {
  return Description::truth(chance_that_equal(of), is_random_pair(of[0], of[1]));
}
Description ne(const Operands& of) {
  return Description::truth(1 - chance_that_equal(of), is_random_pair(of[0], of[1]));
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

// --- of several tensors --------------------------------------------------------------------------

template <std::size_t First, std::size_t Second>
Description joined(const Operands& of) {
  return join(of[First], of[Second]);
}
Description joined_list(const Operands& of) {
  Description all_of;
  bool is_first = true;
  for (const at::Tensor& tensor : of.call().tensors(0)) {
    if (tensor.numel() == 0) continue;
    const Description each = is_simulated(tensor) ? known_of(tensor).description
                                                  : Description::of_type(tensor.scalar_type());
    all_of = is_first ? each : join(all_of, each);
    is_first = false;
  }
  return all_of;
}

constexpr Describe kAny = nullptr;

struct Row {
  const char* name;  // without `_foreach_` before it, and `_` behind it
  Describe first;
  Describe second = kAny;  // of a second result
};

constexpr Row kRows[] = {
    // The same numbers, elsewhere.
    {"clone", self},
    {"contiguous", self},
    {"_to_copy", self},
    {"flip", elsewhere},
    {"roll", elsewhere},
    {"repeat", elsewhere},
    {"index_select", elsewhere},
    {"gather", elsewhere},
    {"take", elsewhere},
    {"index", elsewhere},
    {"masked_select", elsewhere},
    {"masked_fill", joined<0, 2>},
    {"where", joined<1, 2>},
    {"index_put", joined<0, 2>},
    {"_index_put_impl", joined<0, 2>},
    {"index_copy", joined<0, 3>},
    {"scatter", joined<0, 3>},
    {"slice_scatter", joined<0, 1>},
    {"select_scatter", joined<0, 1>},
    {"index_fill", joined<0, 3>},
    {"fill", [](const Operands& of) { return of[1]; }},
    {"zero", zero},
    {"zeros_like", zero},
    {"ones_like", one},
    {"full", [](const Operands& of) { return of[1]; }},
    {"full_like", [](const Operands& of) { return of[1]; }},
    {"cat", joined_list},
    {"stack", joined_list},
    {"constant_pad_nd", joined<0, 2>},
    {"tril", [](const Operands& of) { return join(of[0], Description::constant(0)); }},
    {"triu", [](const Operands& of) { return join(of[0], Description::constant(0)); }},
    {"embedding", self},
    {"max_pool2d_with_indices", bounds},
    {"_adaptive_avg_pool2d", bounds},
    {"upsample_nearest2d", self},
    // Arithmetic.
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
    {"floor", rising<std::floor>},
    {"ceil", rising<std::ceil>},
    {"round", rising<std::round>},
    {"trunc", rising<std::trunc>},
    {"sign", within<-1, 1>},
    {"sin", within<-1, 1>},
    {"cos", within<-1, 1>},
    {"relu", rising<relu>},
    {"softplus", rising<softplus>},
    {"log_sigmoid_forward", not_positive},
    {"hardsigmoid", within<0, 1>},
    {"clamp", clamp},
    {"clamp_min", clamp_min},
    {"clamp_max", clamp_max},
    {"maximum", larger},
    {"minimum", smaller},
    {"fmax", larger},
    {"fmin", smaller},
    {"nan_to_num", self},
    {"_softmax", softmax},
    {"softmax", softmax},
    {"_log_softmax", not_positive},
    {"bitwise_and", bitwise<both, unknown_integer>},
    {"bitwise_or", bitwise<either, unknown_integer>},
    {"bitwise_xor", bitwise<one_of_both, unknown_integer>},
    {"bitwise_not", bitwise<not_so, unknown_integer>},
    // Several to one.
    {"sum", sum},
    {"nansum", sum},
    {"mean", mean},
    {"amax", bounds},
    {"amin", bounds},
    {"max", bounds, place_of_extreme},
    {"min", bounds, place_of_extreme},
    {"median", bounds, place_of_extreme},
    {"mode", bounds, place_of_extreme},
    {"kthvalue", bounds, place_of_kth},
    {"norm", not_negative},
    {"linalg_vector_norm", not_negative},
    {"var", not_negative},
    {"std", not_negative},
    {"var_mean", not_negative, bounds},
    {"std_mean", not_negative, bounds},
    {"count_nonzero",
     [](const Operands& of) {
       const double count = reduced(of);
       return Description::counted(share(of, 0) * count, count, of[0].is_random());
     }},
    {"all", all},
    {"any", any},
    {"cumsum", running_sum},
    {"dist", not_negative},
    {"_cdist_forward", not_negative},
    {"_euclidean_dist", not_negative},
    // Losses.
    {"nll_loss_forward", not_negative},
    {"nll_loss2d_forward", not_negative},
    {"mse_loss", not_negative},
    {"smooth_l1_loss", not_negative},
    {"huber_loss", not_negative},
    {"binary_cross_entropy", not_negative},
    {"binary_cross_entropy_with_logits", not_negative},
    {"_ctc_loss", not_negative},
    {"_cudnn_ctc_loss", not_negative},
    // Choices.
    {"argmax", place_of_extreme},
    {"argmin", place_of_extreme},
    {"topk", bounds, places_of_largest},
    {"sort", elsewhere, order},
    {"argsort", order},
    {"multinomial", samples},
    {"randperm",
     [](const Operands& of) {
       const std::int64_t count = std::max<std::int64_t>(of.result().numel(), 1);
       return Description::chosen(count, count);
     }},
    // Random numbers.
    {"uniform", uniform},
    {"rand", unit},
    {"rand_like", unit},
    {"normal", normal_of},
    {"randn", gauss},
    {"randn_like", gauss},
    {"random", integers},
    {"bernoulli", tosses},
    {"native_dropout", kAny, kept},
    {"exponential", not_negative},
    // Truth.
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
};

Describe find(const Call& call, std::size_t result) {
  static const auto* const rows = [] {
    auto* const made = new std::unordered_map<std::string_view, const Row*>;
    for (const Row& row : kRows) made->emplace(row.name, &row);
    return made;
  }();
  std::string_view name = call.info().plain_name;
  if (name == "bernoulli") return tosses_by;
  constexpr std::string_view kList = "_foreach_";
  if (name.starts_with(kList)) name.remove_prefix(kList.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto place = rows->find(name);
  if (place == rows->end()) return kAny;
  return result == 0 ? place->second->first : result == 1 ? place->second->second : kAny;
}

// A copy draws from the same series, so that its elements are those of what it was copied from.
bool keeps_elements(const Call& call) {
  const std::string& name = call.info().plain_name;
  return name == "clone" || name == "contiguous" || name == "_to_copy";
}

// index_put and scatter may add to what is there, instead of replacing it.
bool accumulates(const Call& call) {
  const std::string& name = call.info().plain_name;
  if (!name.starts_with("index_put") && !name.starts_with("_index_put") &&
      !name.starts_with("scatter")) {
    return false;
  }
  return std::any_of(call.arguments().begin(), call.arguments().end(), [](const auto& argument) {
    return argument.isString() || (argument.isBool() && argument.toBool());
  });
}

}  // namespace

Known describe_written(const Call& call, const Written& written) {
  const Operands operands(call, written);
  const at::ScalarType type = written.tensor.scalar_type();
  Known known;
  known.description = Description::of_type(type);
  const Describe rule = find(call, written.result);
  if (rule == kAny) return known;
  if (accumulates(call)) return known;
  try {
    known.description = in_type(rule(operands), type);
    if (rule != self && rule != elsewhere) known.description.is_whole = false;
  } catch (const c10::Error&) {  // a rule that does not know this overload
    return known;
  }
  if (keeps_elements(call) && operands.tensor(0).strides() == written.tensor.strides()) {
    const Known source = operands.known(0);
    known.series = source.series;
    known.first = source.first;
  }
  const bool becomes_truth =
      type == at::kBool && !known.description.is_constant() && operands.tensor(0).defined() &&
      operands.tensor(0).scalar_type() != at::kBool && known.description.mean == 0;
  if (becomes_truth) known.description = Description::of_type(type);
  return known;
}

}  // namespace plimsoll::simulated
