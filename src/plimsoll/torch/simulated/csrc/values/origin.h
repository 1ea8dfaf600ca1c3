// The origin of a tensor: a number that identifies the operations and tensors it was computed from.
//
// Without origins, a program's rejection loop might never end in a simulation. Such a loop computes
// a condition, draws new values for the elements that meet it, and repeats both steps until no
// element meets it. Only the newly drawn elements can meet the condition in the next round.
// plimsoll has to know this, because it describes all elements by one distribution. So the origin
// of a tensor keeps its number when some elements are replaced. The origin also notes the
// condition, because none of the kept elements meets it.
#pragma once

#include <array>
#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

struct Origin {
  // A condition on a tensor's elements that was computed earlier. Every element that met it has
  // since been replaced, so at most `share` of the elements can meet it now. `way` and `is_turned`
  // identify the condition, as they do in an Origin.
  struct Settled {
    std::uint64_t way = 0;
    bool is_turned = false;
    double share = 1;
  };
  // `way` identifies the operations and the tensors they started from; 0 if unknown. A tensor with
  // partly replaced elements keeps its `way` and gets a new `state`.
  std::uint64_t way = 0;
  std::uint64_t state = 0;
  // The set of the `way` numbers of this tensor and of the tensors from which its elements were
  // computed. Each number sets one of the 64 bits; several numbers may set the same bit.
  std::uint64_t ancestors = 0;
  bool is_turned = false;  // the tensor is the negation of the truth values that `way` names
  bool is_places = false;  // the tensor has the indices where the condition `way` is true
  double open = 1;         // an upper bound of the share of elements that meet a settled condition
  std::array<Settled, 2> settled{};  // the oldest first, then free places

  [[nodiscard]] bool is_known() const { return way != 0; }
  [[nodiscard]] bool is_of(const Origin& ancestor) const;
  // Notes that a condition is settled. If the condition was noted already, keeps the larger share.
  // If `settled` is full, drops its oldest condition. A rejection loop tests the newest
  // condition again, so that one must stay.
  void settle(const Settled& condition);
  // Returns the origin after the fraction `share` of the tensor's elements was replaced. The new
  // origin notes `condition` as settled, unless its `way` is 0. The new elements may meet the other
  // settled conditions again, so the shares of these conditions rise.
  [[nodiscard]] Origin with_replaced(double share, const Settled& condition) const;
};

// Hashes two numbers into one.
std::uint64_t mixed(std::uint64_t one, std::uint64_t other);
// Returns the bit of a way in `Origin::ancestors`.
inline std::uint64_t ancestor_bit(std::uint64_t way) { return std::uint64_t{1} << (way % 64); }

// Returns an origin that is made from a number and not from an operation. The number may belong to
// an allocation or to a random series. `within` becomes part of `state`: it is the version of the
// contents, or the position in the series.
Origin origin_by_number(std::uint64_t number, std::uint64_t within = 0);
// Returns an origin that no other tensor has. Newly drawn random numbers get such an origin.
Origin new_origin();
// Corrects `truth`, which describes a condition's results; `origin` is the origin of these results.
// If the condition is settled, lowers the share of elements that meet it. If the condition's
// negation is settled, lowers the share that meets the negation. In both cases, also lowers
// `origin.open` to this share, unless it is lower already.
Description settled_truth(const Description& truth, Origin& origin);

}  // namespace plimsoll::simulated
