// The properties of an operation, from its schema and from the tables of rules.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "operation/rule_table.h"

namespace plimsoll::simulated {

// A return value, by the operation's schema.
struct Result {
  enum class Kind : std::uint8_t { fresh, argument, view } kind = Kind::fresh;
  std::size_t argument = 0;  // the argument whose tensor it is, or aliases
};

// Properties that are computed once for each operation.
struct OperationInfo {
  std::uint32_t name = 0;
  std::string plain_name;  // "addmm" for aten::addmm.out
  std::vector<Result> results;
  std::vector<bool> is_written;  // for each argument
  std::vector<bool> is_cache;    // for each argument, by its name
  Rule rule = nullptr;           // null: its kernel's internal memory is unknown
  Traits traits = 0;
  bool is_pointwise = false;
  bool is_random = false;
  bool needs_shapes = true;  // its Meta kernel adds something to the arguments' shapes

  [[nodiscard]] bool has(Trait trait) const { return (traits & trait) != 0; }
  [[nodiscard]] bool is_view() const {
    return !results.empty() && results[0].kind == Result::Kind::view;
  }
  // Returns whether it writes to one of its arguments and returns that argument.
  [[nodiscard]] bool is_in_place() const {
    return !results.empty() && results[0].kind == Result::Kind::argument;
  }
  // Returns whether plimsoll knows the kernel's internal memory, even if that is nothing.
  [[nodiscard]] bool is_known() const { return rule != nullptr || is_pointwise || is_view(); }
};

// Returns the properties, which are computed at the operation's first call.
const OperationInfo& info_of(const c10::OperatorHandle& op);

}  // namespace plimsoll::simulated
