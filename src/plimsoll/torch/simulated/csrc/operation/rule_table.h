// The tables of rules, of all files in rules/: what no schema says of operations.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace plimsoll::simulated {

class Call;

// Appends to the call what its kernel takes inside, in its order.
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
  // Its kernel refuses to write to these tensors; see checks/overlap.h.
  kNoOwnOverlap = 1 << 9,                             // several elements at one place
  kNoPartialOverlap = 1 << 10,                        // some memory in common with an operand
  kNoOverlap = 1 << 11,                               // any memory in common with an operand
  kLikeIterator = kNoOwnOverlap | kNoPartialOverlap,  // at::TensorIterator's defaults
};
using Traits = std::uint16_t;

// An operation has the rule of the row with its full name, else of that with its plain one, and the
// traits of all rows that name it.
struct RuleRow {
  const char* name;   // "topk", with its overload "aten::max.dim", or a family "_foreach_*"
  Rule rule;          // null, as families have it, where what the kernel takes is not known
  Traits traits = 0;  // joined by |
};

// Adds rows, whose names live on. Two rows of one name are an error.
void add_rules(std::span<const RuleRow> rows);

struct FoundRule {
  Rule rule = nullptr;
  Traits traits = 0;
};
// `full`: "aten::max.dim"; `plain`: "max".
FoundRule find_rule(const std::string& full, const std::string& plain);

}  // namespace plimsoll::simulated
