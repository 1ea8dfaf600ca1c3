// The tables of rules, which the files of rules/ fill. The tables say what PyTorch's schemas
// do not say about operations: how a kernel takes memory, and other properties.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace plimsoll::simulated {

class Call;

// A function that appends the steps by which a kernel takes and frees memory, in their order.
using Rule = void (*)(Call&);

// Properties of an operation that are not in its schema. A row may combine several properties.
enum Trait : std::uint16_t {
  kTakesIndices = 1 << 0,  // a list of indices, as in x[i, j]; host indices are moved to the device
  kOnLists = 1 << 1,       // runs on each tensor of a list
  kMixesDevices = 1 << 2,  // takes operands on several devices
  kByIterator = 1 << 3,    // TensorIterator raises the error for operands on several devices
  kOverwrites = 1 << 4,    // the result does not depend on the old contents of the written tensor
  kReadByHost = 1 << 5,    // the host waits for a value and uses it
  kMovesStorage = 1 << 6,  // replaces or resizes a storage; computes nothing
  kCopies = 1 << 7,        // copy_, whose one kernel serves all devices
  kFindsFinite = 1 << 8,   // unknown gradients count as finite, so that a GradScaler steps
  // Each of the next three traits names an overlap. The kernel refuses to write to a tensor that
  // has this overlap (checks/overlap.h).
  kNoOwnOverlap = 1 << 9,       // the tensor's elements share addresses
  kNoPartialOverlap = 1 << 10,  // the tensor shares part of an operand's memory
  kNoOverlap = 1 << 11,         // the tensor shares any memory with an operand
  kLikeIterator = kNoOwnOverlap | kNoPartialOverlap,  // the defaults of at::TensorIterator
};
using Traits = std::uint16_t;

// A row of a rule table. The search for an operation's rule first tries the row with the full name
// of the operation, and then the row with the plain name. The traits of all rows that name the
// operation are combined.
struct RuleRow {
  const char* name;   // "topk", "aten::max.dim" (with overload), or "_foreach_*" (family)
  Rule rule;          // null if the kernel's memory is unknown, or if the row is for a family
  Traits traits = 0;  // joined by |
};

// The constructors add rows to one table that all objects of this class share. The rows' names must
// live as long as the process.
class RuleTable {
 public:
  RuleTable(std::initializer_list<RuleRow> rows);
  // Adds one row for each name; all these rows have the rule `rule`.
  RuleTable(std::span<const char* const> names, Rule rule);
};

struct FoundRule {
  Rule rule = nullptr;
  Traits traits = 0;
};
// Finds the rule of an operation. If `full` is "aten::max.dim", `plain` is "max".
FoundRule find_rule(const std::string& full, const std::string& plain);

}  // namespace plimsoll::simulated
