#include "values/description.h"

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

// Draws the index at position `number` of a series of indices (Spread::chosen). The index lies in
// [0, `of.high`]. A row is `of.per_row` consecutive indices, such as one token's experts. All
// indices of a row differ.
double choose(const Description& of, std::uint64_t series, std::uint64_t number) {
  const auto count = static_cast<std::uint64_t>(of.high) + 1;
  const auto per_row = static_cast<std::uint64_t>(std::max<std::int64_t>(of.per_row, 1));
  const std::uint64_t row = number / per_row;
  const std::uint64_t place = number % per_row;
  if (chosen_unknown == Unknown::least) return static_cast<double>(number % count);
  const std::uint64_t bits = mix(series ^ mix(row));
  // The program takes the most memory if one index has a large share. So with Unknown::most, three
  // of four rows begin with index 0, followed by other indices. The fourth row begins with a random
  // index, so that every index occurs sometimes.
  if (chosen_unknown == Unknown::most && row % 4 != 0 && count > 1) {
    return place == 0 ? 0 : static_cast<double>(1 + (bits + place) % (count - 1));
  }
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
  double part = fraction(mix(series ^ mix(number)));
  if (type == c10::ScalarType::Bool) {
    if (of.spread == Spread::data && of.is_open() && chosen_unknown != Unknown::balanced) {
      return chosen_unknown == Unknown::most ? 1 : 0;
    }
    return part < of.mean ? 1 : 0;
  }
  for (const Description::Atom& atom : of.atoms) {
    if (part < atom.share) return atom.at;
    part -= atom.share;
  }
  part = std::clamp(part / std::max(1 - of.atom_share(), kHardlyEver), 0.0, 1 - 0x1.0p-53);
  if (of.spread == Spread::normal) {
    const double other = fraction(mix(series ^ ~mix(number)));
    const double drawn = of.mean + of.deviation * std::sqrt(-2 * std::log1p(-part)) *
                                       std::cos(2 * std::numbers::pi * other);
    return std::clamp(drawn, of.low, of.high);
  }
  const bool has_low = std::isfinite(of.low);
  const bool has_high = std::isfinite(of.high);
  const bool is_integer =
      c10::isIntegralType(type, /*includeBool=*/true) || (of.is_whole && has_low && has_high);
  if (is_integer) {
    if (has_low && has_high) {
      if (of.spread == Spread::data && chosen_unknown == Unknown::most) return of.high;
      if (of.spread == Spread::data && chosen_unknown == Unknown::least) return of.low;
      return of.low + std::floor(part * (of.high - of.low + 1));
    }
    // Returns zero or the bound closest to zero: the program may use the number as an index.
    return std::clamp(0.0, of.low, of.high);
  }
  if (has_low && has_high) return of.low + part * (of.high - of.low);
  // The result is not close to zero, because the program may divide by it or take its logarithm.
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
  const double share = mean / std::max(most, 1.0);
  if (!random && share > kHardlyEver && share < 1 - kHardlyEver) {
    return {0, most, Spread::counted, expected};
  }
  if (!random) return {0, most, Spread::normal, expected, 0};
  return {0, most, Spread::normal, expected_of_random(mean, most), 0};
}

Description Description::of_type(c10::ScalarType type) {
  if (type == c10::ScalarType::Bool) return truth(0.5);
  if (type == c10::ScalarType::Byte) return between(0, 255);
  return {};
}

void Description::add_atom(const Atom& atom) {
  if (atom.share <= 0 || std::isnan(atom.at)) return;
  for (Atom& known : atoms) {
    if (known.share > 0 && known.at != atom.at) continue;
    known = {atom.at, known.share + atom.share,
             atom.is_random && (known.share == 0 || known.is_random)};
    return;
  }
  Atom& least = atoms[0].share < atoms[1].share ? atoms[0] : atoms[1];
  if (least.share < atom.share) least = atom;
}

double Description::atom_share() const { return std::min(atoms[0].share + atoms[1].share, 1.0); }

Chance Description::share_at(double value) const {
  if (is_constant()) return {low == value ? 1.0 : 0.0, true};
  for (const Atom& atom : atoms) {
    if (atom.share > 0 && atom.at == value) return {atom.share, atom.is_random};
  }
  return {};
}

Description join(const Description& one, const Description& other, double share) {
  if (share <= 0) return other;
  if (share >= 1) return one;
  const bool alike = one.spread == other.spread && one.low == other.low && one.high == other.high &&
                     one.mean == other.mean && one.deviation == other.deviation &&
                     one.atom_share() == 0 && other.atom_share() == 0;
  Description both = one;
  both.low = std::min(one.low, other.low);
  both.high = std::max(one.high, other.high);
  both.is_finite = one.is_finite && other.is_finite;
  both.is_given = one.is_given && other.is_given;
  const auto is_whole = [](const Description& of) {
    return of.is_whole || (of.is_constant() && of.low == std::trunc(of.low));
  };
  both.is_whole = is_whole(one) && is_whole(other);
  if (alike) return both;
  both.spread = Description::Spread::data;
  both.mean = share * (one.is_constant() ? one.low : one.mean) +
              (1 - share) * (other.is_constant() ? other.low : other.mean);
  both.deviation = 0;
  both.reaches_bounds = false;
  both.per_row = 1;
  both.sums_to_one = 0;
  both.atoms = {};
  const auto add = [&](const Description& of, double part) {
    if (of.is_constant()) both.add_atom({of.low, part});
    for (const Description::Atom& atom : of.atoms) {
      both.add_atom({atom.at, part * atom.share, atom.is_random});
    }
  };
  add(one, share);
  add(other, 1 - share);
  return both;
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
