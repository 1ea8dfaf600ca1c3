// The origin of a tensor: the tensors and operations that made it.
//
// A rejection loop draws elements anew where a condition is true. When it computes the condition
// again in the same way, only the new elements can meet it. A tensor therefore keeps its identity
// when a part of its elements is replaced, and notes the condition that the other elements do not
// meet.
#pragma once

#include <array>
#include <cstdint>

#include "values/description.h"

namespace plimsoll::simulated {

struct Origin {
  // A condition that only replaced elements can meet: at most `share` of all.
  struct Settled {
    std::uint64_t way = 0;
    bool is_turned = false;
    double share = 1;
  };
  // A number for the operations and the tensors that they started from; 0 if unknown. A partly
  // replaced tensor keeps its `way` and gets a new `state`.
  std::uint64_t way = 0;
  std::uint64_t state = 0;
  std::uint64_t ancestors = 0;  // one bit for each way that led here; several ways may share a bit
  bool is_turned = false;       // for truth values: the way's negation
  bool is_places = false;       // the positions where it is true
  double open = 1;              // the share of elements that still meets a settled condition
  std::array<Settled, 2> settled{};

  [[nodiscard]] bool is_known() const { return way != 0; }
  [[nodiscard]] bool is_of(const Origin& ancestor) const;
  // Adds the condition; of two notes it keeps the one that claims less.
  void settle(const Settled& condition);
  // Returns the origin of a tensor of which `share` was replaced: the elements that met the
  // condition, or any elements if the condition has no way.
  [[nodiscard]] Origin with_replaced(double share, const Settled& condition) const;
};

// Combines two numbers into one.
std::uint64_t mixed(std::uint64_t one, std::uint64_t other);
// Returns the bit of `Origin::ancestors` for a way.
inline std::uint64_t ancestor_bit(std::uint64_t way) { return std::uint64_t{1} << (way % 64); }

// Returns the origin of a tensor that no operation explains.
Origin origin_by_number(std::uint64_t number, std::uint64_t within = 0);
// Returns the origin of numbers that are drawn now.
Origin new_origin();
// Describes truth values with that origin. If their condition is settled, fewer elements meet it
// than the operands suggest.
Description settled_truth(const Description& truth, Origin& origin);

}  // namespace plimsoll::simulated
