// What an operation is: what its schema says of it, and what the tables in rules/ add.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll::simulated {

class Call;

// How a kernel's inner memory is described: takes what the kernel takes, in its order.
using Rule = void (*)(Call&);

// What no schema says. A row of a table has any of them.
enum Trait : std::uint16_t {
  kTakesIndices = 1 << 0,  // a list of them, as x[i, j]; those of the host are taken over
  kOnLists = 1 << 1,       // of tensors, element by element
  kMixesDevices = 1 << 2,  // its operands may be on several
  kByIterator = 1 << 3,    // TensorIterator refuses operands on several, in words of its own
  kOverwrites = 1 << 4,    // what it writes does not depend on what was there
  kReadByHost = 1 << 5,    // the host waits for a value and goes on with it
  kMovesStorage = 1 << 6,  // computes nothing
  kCopies = 1 << 7,        // one kernel for all devices
  kFindsFinite = 1 << 8,   // gradients are, or a scaler would never step: what was there stays
  // Its kernel refuses to write to these tensors; see overlap.h.
  kNoOwnOverlap = 1 << 9,                             // several elements at one place
  kNoPartialOverlap = 1 << 10,                        // some memory in common with an operand
  kNoOverlap = 1 << 11,                               // any memory in common with an operand
  kLikeIterator = kNoOwnOverlap | kNoPartialOverlap,  // at::TensorIterator's defaults
};
using Traits = std::uint16_t;

// What a return value is, by the operation's schema.
struct Result {
  enum class Kind : std::uint8_t { fresh, argument, view } kind = Kind::fresh;
  std::size_t argument = 0;  // whose tensor it is, or aliases
};

// Worked out once for each operation.
struct OperationInfo {
  std::uint32_t name = 0;
  std::string plain_name;  // "addmm" for aten::addmm.out
  std::vector<Result> results;
  std::vector<bool> is_written;  // by argument
  Rule rule = nullptr;           // none: what its kernel takes inside is not known
  Traits traits = 0;
  bool is_pointwise = false;
  bool is_random = false;
  bool needs_shapes = true;  // its Meta kernel says something that the arguments do not

  [[nodiscard]] bool has(Trait trait) const { return (traits & trait) != 0; }
  [[nodiscard]] bool is_view() const {
    return !results.empty() && results[0].kind == Result::Kind::view;
  }
  // It writes to one of its arguments and returns that.
  [[nodiscard]] bool is_in_place() const {
    return !results.empty() && results[0].kind == Result::Kind::argument;
  }
  // What its kernel takes inside is known, if only to be nothing.
  [[nodiscard]] bool is_known() const { return rule != nullptr || is_pointwise || is_view(); }
};

// Worked out at the operation's first call.
const OperationInfo& info_of(const c10::OperatorHandle& op);

}  // namespace plimsoll::simulated
