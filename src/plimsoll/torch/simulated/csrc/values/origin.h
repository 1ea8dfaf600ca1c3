// How a tensor came about: from which tensors, by which operations.
//
// A loop by rejection draws the elements anew of which a condition is true. When it computes the
// condition again, in the same way, only elements that were drawn anew can meet it. So a tensor
// keeps its identity where a part of its elements is replaced, and notes which condition the others
// do not meet.
#pragma once

#include <array>
#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

struct Origin {
  // A condition that only elements which were replaced can meet: `share` of all, at most.
  struct Settled {
    std::uint64_t way = 0;
    bool is_turned = false;
    double share = 1;
  };
  // A number for the operations and for the tensors that they began with; 0 where it is not known.
  // With `way`, a tensor of which a part was replaced is the same; with `state` it is another.
  std::uint64_t way = 0;
  std::uint64_t state = 0;
  std::uint64_t ancestors = 0;  // a bit for each way on the way, several of which may share one
  bool is_turned = false;       // truth values: the negation of what the way says
  bool is_places = false;       // the places where that is true
  double open = 1;              // the share that still meets a settled condition
  std::array<Settled, 2> settled{};

  [[nodiscard]] bool is_known() const { return way != 0; }
  [[nodiscard]] bool is_of(const Origin& ancestor) const;
  // Notes the condition too; of two notes the one that says less.
  void settle(const Settled& condition);
  // The origin of a tensor of which such a share was replaced: the elements that met the condition,
  // or any, with a condition of no way.
  [[nodiscard]] Origin with_replaced(double share, const Settled& condition) const;
};

// Makes one number of two.
std::uint64_t mixed(std::uint64_t one, std::uint64_t other);
// The bit of `Origin::ancestors` for a way.
inline std::uint64_t ancestor_bit(std::uint64_t way) { return std::uint64_t{1} << (way % 64); }

// The origin of a tensor that no operation explains.
Origin origin_by_number(std::uint64_t number, std::uint64_t within = 0);
// The origin of numbers that are drawn now.
Origin new_origin();
// The description of truth values with that origin, where their condition is settled: fewer meet it
// than their operands let expect.
Description settled_truth(const Description& truth, Origin& origin);

}  // namespace plimsoll::simulated
