// The tables of rules, of all files in rules/: properties that no schema gives.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace plimsoll::simulated {

class Call;

// Appends the kernel's internal memory steps to the call, in their order.
using Rule = void (*)(Call&);

// Properties that no schema gives. A row of a table has any of them.
enum Trait : std::uint16_t {
  kTakesIndices = 1 << 0,  // a list of indices, as in x[i, j]; host indices are moved to the device
  kOnLists = 1 << 1,       // runs on each tensor of a list
  kMixesDevices = 1 << 2,  // its operands may be on several devices
  kByIterator = 1 << 3,    // TensorIterator refuses operands on several devices, with its own text
  kOverwrites = 1 << 4,    // its result does not depend on the old contents
  kReadByHost = 1 << 5,    // the host waits for a value and uses it
  kMovesStorage = 1 << 6,  // computes nothing
  kCopies = 1 << 7,        // one kernel for all devices
  kFindsFinite = 1 << 8,   // keeps the old flag, as if gradients were finite: a scaler has to step
  // The kernel refuses to write to these tensors; see checks/overlap.h.
  kNoOwnOverlap = 1 << 9,                             // several elements at one address
  kNoPartialOverlap = 1 << 10,                        // part of an operand's memory
  kNoOverlap = 1 << 11,                               // any of an operand's memory
  kLikeIterator = kNoOwnOverlap | kNoPartialOverlap,  // the defaults of at::TensorIterator
};
using Traits = std::uint16_t;

// An operation has the rule of the row with its full name, or else of the row with its plain name,
// and the traits of all rows that name it.
struct RuleRow {
  const char* name;   // "topk", with its overload "aten::max.dim", or a family "_foreach_*"
  Rule rule;          // null if the kernel's memory is unknown, as for families
  Traits traits = 0;  // joined by |
};

// Some rows of the table. Their names are never freed.
class RuleTable {
 public:
  RuleTable(std::initializer_list<RuleRow> rows);
  // Makes rows with one rule.
  RuleTable(std::span<const char* const> names, Rule rule);
};

struct FoundRule {
  Rule rule = nullptr;
  Traits traits = 0;
};
// Finds a rule by `full`, such as "aten::max.dim", and `plain`, such as "max".
FoundRule find_rule(const std::string& full, const std::string& plain);

}  // namespace plimsoll::simulated
