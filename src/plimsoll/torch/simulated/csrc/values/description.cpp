#include "description.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

namespace plimsoll::simulated {
namespace {

std::atomic<std::uint64_t> last_series = 0;
std::uint64_t seed_of_all = 0;
Unknown chosen_unknown = Unknown::balanced;

std::uint64_t mix(std::uint64_t value) {  // the finalizer of SplitMix64
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

double fraction(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// The chance that a standard normal number is below.
double below(double value) { return 0.5 * std::erfc(-value / std::numbers::sqrt2); }

// Mean and deviation of numbers whose spread is known.
struct Moments {
  double mean;
  double deviation;
};

Moments moments_of(const Description& of) {
  if (of.is_constant()) return {of.low, 0};
  if (of.spread == Description::Spread::normal) return {of.mean, of.deviation};
  return {(of.low + of.high) / 2, (of.high - of.low) / std::sqrt(12.0)};
}

bool is_whole(const Description& of) {
  return of.is_whole || (of.is_constant() && of.low == std::trunc(of.low));
}

bool is_spread(const Description& of) { return of.is_random() || of.is_constant(); }

// A number of something's choice of `count`, other than those before it in its row.
double choose(const Description& of, std::uint64_t series, std::uint64_t number) {
  const auto count = static_cast<std::uint64_t>(of.high) + 1;
  const auto per_row = static_cast<std::uint64_t>(std::max<std::int64_t>(of.per_row, 1));
  const std::uint64_t row = number / per_row;
  const std::uint64_t place = number % per_row;
  // Most rows choose the same first, and it is large; none is left without any.
  if (chosen_unknown == Unknown::most && place == 0 && row % 4 != 0) return 0;
  if (chosen_unknown == Unknown::least) return static_cast<double>(number % count);
  const std::uint64_t bits = mix(series ^ mix(row));
  return static_cast<double>((bits + place) % count);
}

double draw_one(const Description& of, std::uint64_t series, std::uint64_t number,
                c10::ScalarType type) {
  using Spread = Description::Spread;
  if (of.is_constant()) return of.low;
  if (of.spread == Spread::chosen) return choose(of, series, number);
  if (of.spread == Spread::counted) {
    if (chosen_unknown == Unknown::balanced) return of.mean;
    return chosen_unknown == Unknown::most ? of.high : of.low;
  }
  const double part = fraction(mix(series ^ mix(number)));
  if (type == c10::ScalarType::Bool) {
    if (of.spread == Spread::data && chosen_unknown != Unknown::balanced) {
      return chosen_unknown == Unknown::most ? 1 : 0;
    }
    return part < of.mean ? 1 : 0;
  }
  if (of.spread == Spread::normal) {
    const double other = fraction(mix(series ^ ~mix(number)));
    const double drawn = of.mean + of.deviation * std::sqrt(-2 * std::log1p(-part)) *
                                       std::cos(2 * std::numbers::pi * other);
    return std::clamp(drawn, of.low, of.high);
  }
  const bool is_integer = c10::isIntegralType(type, /*includeBool=*/true) || of.is_whole;
  const bool has_low = std::isfinite(of.low);
  const bool has_high = std::isfinite(of.high);
  if (is_integer) {
    if (has_low && has_high) {
      if (of.spread == Spread::data && chosen_unknown == Unknown::most) return of.high;
      if (of.spread == Spread::data && chosen_unknown == Unknown::least) return of.low;
      return of.low + std::floor(part * (of.high - of.low + 1));
    }
    // An index may be meant.
    return std::clamp(0.0, of.low, of.high);
  }
  if (has_low && has_high) return of.low + part * (of.high - of.low);
  // Programs divide by such numbers and take logarithms of them.
  const double size = 0.5 + part;
  if (has_low && of.low >= size) return of.low + size;
  if (has_high && of.high <= size) return of.high - size;
  return size;
}

}  // namespace

Description Description::truth(double share, bool random) {
  if (share <= 0) return constant(0);
  if (share >= 1) return constant(1);
  Description made = random ? even(0, 1) : between(0, 1);
  made.mean = share;
  return made;
}

double expected_of_random(double mean, double most) {
  constexpr double kDeviations = 4;
  const double deviation = std::sqrt(mean * std::max(0.0, 1 - mean / std::max(most, 1.0)));
  const double away = chosen_unknown == Unknown::most    ? kDeviations
                      : chosen_unknown == Unknown::least ? -kDeviations
                                                         : 0;
  return std::round(std::clamp(mean + away * deviation, 0.0, most));
}

Description Description::counted(double mean, double most, bool random) {
  const double expected = std::round(mean);
  if (!random) return {0, most, Spread::counted, expected};
  return {0, most, Spread::normal, expected_of_random(mean, most), 0};
}

Description Description::of_type(c10::ScalarType type) {
  if (type == c10::ScalarType::Bool) return truth(0.5);
  if (type == c10::ScalarType::Byte) return between(0, 255);
  return {};
}

Description join(const Description& one, const Description& other) {
  Description both = one;
  both.low = std::min(one.low, other.low);
  both.high = std::max(one.high, other.high);
  both.is_finite = one.is_finite && other.is_finite;
  both.is_whole = is_whole(one) && is_whole(other);
  const bool alike = one.spread == other.spread && one.low == other.low && one.high == other.high &&
                     one.mean == other.mean && one.deviation == other.deviation;
  if (!alike) {
    both.spread = Description::Spread::data;
    both.mean = (one.is_constant() ? one.low : one.mean) / 2 +
                (other.is_constant() ? other.low : other.mean) / 2;
    both.deviation = 0;
    both.per_row = 1;
    both.sums_to_one = 0;
  }
  return both;
}

double chance_of_less(const Description& one, const Description& other, bool or_equal,
                      bool are_integers) {
  if (one.high < other.low) return 1;
  if (one.low > other.high) return 0;
  if (one.is_constant() && other.is_constant()) return or_equal ? 1 : 0;
  if (or_equal && one.high <= other.low) return 1;
  if (!or_equal && one.low >= other.high) return 0;
  // Bounds leave it open, so nobody is sure.
  const auto open = [](double chance) { return std::clamp(chance, 1e-12, 1 - 1e-12); };
  if (!is_spread(one) || !is_spread(other)) return 0.5;
  using Spread = Description::Spread;
  const double step = are_integers ? 1 : 0;
  const auto part_below = [&](const Description& of, double bound, bool with_bound) {
    const double whole =
        are_integers ? with_bound ? std::floor(bound) + 1 : std::ceil(bound) : bound;
    return (whole - of.low) / (of.high - of.low + step);
  };
  if (one.spread == Spread::even && other.is_constant()) {
    return open(part_below(one, other.low, or_equal));
  }
  if (other.spread == Spread::even && one.is_constant()) {
    return open(1 - part_below(other, one.low, !or_equal));
  }
  const Moments first = moments_of(one);
  const Moments second = moments_of(other);
  return open(below((second.mean - first.mean) / std::hypot(first.deviation, second.deviation)));
}

double chance_of_equal(const Description& one, const Description& other, c10::ScalarType type) {
  if (one.high < other.low || one.low > other.high) return 0;
  if (one.is_constant() && other.is_constant()) return 1;
  const bool is_infinite = (one.is_constant() && std::isinf(one.low) && other.is_finite) ||
                           (other.is_constant() && std::isinf(other.low) && one.is_finite);
  if (is_infinite) return 0;
  // Numbers with fractions hardly ever hit another one.
  const bool are_whole = is_whole(one) && is_whole(other);
  if (!are_whole && !c10::isIntegralType(type, /*includeBool=*/true)) return 0;
  if (type == c10::ScalarType::Bool) {
    const double first = one.is_constant() ? one.low : one.mean;
    const double second = other.is_constant() ? other.low : other.mean;
    return first * second + (1 - first) * (1 - second);
  }
  const double values = std::max(one.high - one.low, other.high - other.low) + 1;
  return std::isfinite(values) ? 1 / values : 0.5;
}

bool is_random_pair(const Description& one, const Description& other) {
  return is_spread(one) && is_spread(other);
}

Description in_type(Description of, c10::ScalarType type) {
  if (type == c10::ScalarType::Bool && of.is_constant()) {
    return Description::constant(of.low != 0 ? 1 : 0);
  }
  if (!c10::isIntegralType(type, /*includeBool=*/false)) return of;
  of.low = std::trunc(of.low);
  of.high = std::trunc(of.high);
  const double most = std::exp2(8 * static_cast<double>(c10::elementSize(type)) -
                                (c10::isSignedType(type) ? 1 : 0));
  const bool fits = of.high < most && of.low >= (c10::isSignedType(type) ? -most : 0);
  const bool is_open = std::isinf(of.low) || std::isinf(of.high);
  return fits || is_open ? of : Description::of_type(type);
}

void draw(const Description& of, std::uint64_t series, std::uint64_t first, c10::ScalarType type,
          std::int64_t count, double* to) {
  const std::uint64_t start = mix(series ^ mix(seed_of_all));
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = draw_one(of, start, first + static_cast<std::uint64_t>(i), type);
  }
}

std::uint64_t next_series() { return ++last_series; }

void set_unknown(Unknown unknown, std::uint64_t seed) {
  chosen_unknown = unknown;
  seed_of_all = seed;
}

Unknown unknown() { return chosen_unknown; }

}  // namespace plimsoll::simulated
