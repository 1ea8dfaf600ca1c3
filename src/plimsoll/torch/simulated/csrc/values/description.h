// Descriptions of numbers that were not computed: their bounds, and their distribution between
// them.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <limits>

namespace plimsoll::simulated {

// How unknown data is chosen if sizes depend on it.
enum class Unknown : std::uint8_t { balanced, most, least };

// An event with a lower chance hardly ever happens, but is not ruled out.
constexpr double kHardlyEver = 1e-9;

// The chance of a property of a number; `is_random`: random draws alone decide, whatever the data
// is.
struct Chance {
  double share = 0;
  bool is_random = false;
};

// A description of numbers. They are always finite, as in a healthy run.
struct Description {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  enum class Spread : std::uint8_t {
    data,     // depends on the program's data
    even,     // uniform over the bounds, from a random generator
    normal,   // around `mean`, from a random generator
    chosen,   // chosen indices within [0, high], such as tokens or experts
    counted,  // a count: `mean`, or a bound if the choice of data says so
  };
  // One number that many elements have: the zeros of relu, the ends of clamp. The other elements
  // are distributed.
  struct Atom {
    double at = 0;
    double share = 0;
    bool is_random = false;
  };
  double low = -kNone;
  double high = kNone;
  Spread spread = Spread::data;
  double mean = 0;               // for `normal`; for truth values, the share of true ones
  double deviation = 0;          // for `normal`
  std::int64_t per_row = 1;      // for `chosen`: this many consecutive numbers differ
  std::int64_t sums_to_one = 0;  // over a dimension of this size; 0 if they do not
  std::int64_t sum_stride = 0;   // the stride of that dimension
  bool is_finite = true;         // false only for numbers that the program wrote itself
  bool is_whole = false;         // numbers without fractions, whatever their type
  bool reaches_bounds = false;   // one element equals `low`, and one `high`
  std::array<Atom, 2> atoms{};   // for numbers, not for truth values

  [[nodiscard]] bool is_constant() const { return low == high; }
  // Returns whether a random generator draws the numbers, whatever the program's data is.
  [[nodiscard]] bool is_random() const {
    return spread == Spread::even || spread == Spread::normal;
  }

  // Returns whether data may decide truth values either way.
  [[nodiscard]] bool is_open() const { return mean > kHardlyEver && mean < 1 - kHardlyEver; }

  static Description constant(double value) { return {value, value}; }
  static Description between(double low, double high) { return {low, high}; }
  static Description even(double low, double high) { return {low, high, Spread::even}; }
  static Description normal(double mean, double deviation) {
    return {-kNone, kNone, Spread::normal, mean, deviation};
  }
  static Description chosen(std::int64_t of, std::int64_t per_row = 1) {
    return {0, static_cast<double>(of - 1), Spread::chosen, 0, 0, per_row};
  }
  // Makes truth values; `random`: the share comes from random numbers, and not from data.
  static Description truth(double share, bool random = false);
  static Description truth(const Chance& of) { return truth(of.share, of.is_random); }
  // Makes truth values that data decides: likely or unlikely, but never certain.
  static Description likely(double share) { return {0, 1, Spread::data, share}; }
  // Makes a count among `most`.
  static Description counted(double mean, double most, bool random);
  // Makes a share of the elements one number; drops the smallest atoms if there is no room.
  void add_atom(const Atom& atom);
  // Returns the share of elements that are atoms.
  [[nodiscard]] double atom_share() const;
  // Returns the share that certainly equals the number.
  [[nodiscard]] Chance share_at(double value) const;
  // Returns the description of any numbers of a type.
  static Description of_type(c10::ScalarType type);
};

// Describes the numbers of both; `share` of the elements belong to the first.
Description join(const Description& one, const Description& other, double share = 0.5);
// Returns how many of `most` random draws hit, with `mean` hits on average. For the most or the
// least it returns a count that is hardly ever exceeded.
double expected_of_random(double mean, double most);

// Draws the numbers `first`, `first` + 1, … of a series of that description. A position of a series
// always has the same number.
void draw(const Description& of, std::uint64_t series, std::uint64_t first, c10::ScalarType type,
          std::int64_t count, double* to);
// Returns a new series.
std::uint64_t next_series();
// Sets how all series are drawn from now on.
void set_unknown(Unknown unknown, std::uint64_t seed);
Unknown unknown();

}  // namespace plimsoll::simulated
