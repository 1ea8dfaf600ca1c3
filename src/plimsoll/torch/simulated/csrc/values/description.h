// Descriptions of numbers that were not computed: their bounds, and the distribution within them.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <limits>

namespace plimsoll::simulated {

// How plimsoll chooses unknown data on which tensor sizes depend: balanced, or so that the program
// takes the most or the least memory.
enum class Unknown : std::uint8_t { balanced, most, least };

// An event with a chance below this number counts as unlikely. It can still happen.
constexpr double kHardlyEver = 1e-9;

// The chance that a number has some property. If `is_random`, only random draws decide this, and
// not the program's data.
struct Chance {
  double share = 0;
  bool is_random = false;
};

// A description of numbers that were not computed. plimsoll takes the numbers to be finite, as in
// a healthy run.
struct Description {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  enum class Spread : std::uint8_t {
    data,    // anything within the bounds, decided by the program's data
    even,    // from a random generator, uniform within the bounds
    normal,  // from a random generator, normal around `mean`
    chosen,  // indices within [0, high], such as tokens or experts
    // A count that depends on the program's data. plimsoll assumes `mean` for it, but `high` with
    // Unknown::most and `low` with Unknown::least.
    counted,
  };
  // A value that many elements have, such as the zeros of relu or the limits of clamp. The
  // remaining elements follow the distribution.
  struct Atom {
    double at = 0;
    double share = 0;
    bool is_random = false;
  };
  double low = -kNone;
  double high = kNone;
  Spread spread = Spread::data;
  double mean = 0;           // for `normal` and `counted`; for truth values, the share that is true
  double deviation = 0;      // for `normal`
  std::int64_t per_row = 1;  // for `chosen`: this many consecutive numbers all differ
  std::int64_t sums_to_one = 0;  // size of the dimension along which numbers sum to 1; 0 if none
  std::int64_t sum_stride = 0;   // stride of that dimension
  bool is_finite = true;         // false only if the program itself passed infinity or NaN
  bool is_whole = false;         // the numbers are whole, even if their type allows fractions
  bool reaches_bounds = false;   // some element equals `low`, and some element `high`
  // The program itself wrote the constant, so a GPU has the same number. Other constants are right
  // only in a healthy run: x - x is no zero if x is infinite.
  bool is_given = false;
  std::array<Atom, 2> atoms{};  // only for numbers, not for truth values

  [[nodiscard]] bool is_constant() const { return low == high; }
  // Returns whether the numbers come from a random generator and so do not depend on data.
  [[nodiscard]] bool is_random() const {
    return spread == Spread::even || spread == Spread::normal;
  }

  // Returns whether truth values may be true as well as false, depending on data.
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
  // Describes truth values. `random`: random draws, and not data, decide which values are true.
  static Description truth(double share, bool random = false);
  static Description truth(const Chance& of) { return truth(of.share, of.is_random); }
  // Describes truth values that depend on data. About `share` of them are true. Even a share of 0
  // or 1 makes no value certain.
  static Description likely(double share) { return {0, 1, Spread::data, share}; }
  // Describes a count between 0 and `most` with the average `mean`. `random`: random draws, and not
  // data, decide the count.
  static Description counted(double mean, double most, bool random);
  // Adds an atom, or adds its share to an existing atom of the same value. A description has room
  // for two atoms. If there would be three, the atom with the smallest share is dropped.
  void add_atom(const Atom& atom);
  // Returns the share of elements whose value is one of the atoms.
  [[nodiscard]] double atom_share() const;
  // Returns the share of elements that are known to equal `value`.
  [[nodiscard]] Chance share_at(double value) const;
  // Describes numbers of which only the type is known.
  static Description of_type(c10::ScalarType type);
};

// Describes a mixture of two descriptions: `share` of the elements belong to `one`.
Description join(const Description& one, const Description& other, double share = 0.5);
// Returns how many of `most` random draws plimsoll assumes to be hits. On average, `mean` of the
// draws are hits. With Unknown::balanced, the result is `mean`, rounded. With Unknown::most, real
// draws hardly ever have more hits than the result. With Unknown::least, they hardly ever have
// fewer.
double expected_of_random(double mean, double most);

// Draws the numbers at positions `first`, `first` + 1, … of a series. A series is a random
// sequence: each position always has the same number, however often it is drawn.
void draw(const Description& of, std::uint64_t series, std::uint64_t first, c10::ScalarType type,
          std::int64_t count, double* to);
// Returns the id of a new series.
std::uint64_t next_series();
// Sets how the numbers of all series are drawn from now on. Another `seed` gives other numbers.
void set_unknown(Unknown unknown, std::uint64_t seed);
Unknown unknown();

}  // namespace plimsoll::simulated
