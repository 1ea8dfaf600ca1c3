// The properties of an operation, taken from its schema and from the tables of rules.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "operation/rule_table.h"

namespace plimsoll::simulated {

// A result of an operation, as its schema declares it.
struct Result {
  enum class Kind : std::uint8_t { fresh, argument, view } kind = Kind::fresh;
  std::size_t argument = 0;  // for `argument` and `view`: the argument returned or viewed
};

// Properties that are computed once for each operation.
struct OperationInfo {
  std::uint32_t name = 0;
  std::string plain_name;  // "addmm" for aten::addmm.out
  std::vector<Result> results;
  std::vector<bool> is_written;  // for each argument: the kernel writes to it
  std::vector<bool> is_cache;    // for each argument: its name says that it is a cache
  Rule rule = nullptr;           // null if no rule describes the kernel's memory
  Traits traits = 0;
  bool is_pointwise = false;
  bool is_random = false;
  bool needs_shapes = true;  // the Meta kernel has to infer the results' shapes

  [[nodiscard]] bool has(Trait trait) const { return (traits & trait) != 0; }
  [[nodiscard]] bool is_view() const {
    return !results.empty() && results[0].kind == Result::Kind::view;
  }
  // Returns whether the operation writes to an argument and returns that argument.
  [[nodiscard]] bool is_in_place() const {
    return !results.empty() && results[0].kind == Result::Kind::argument;
  }
  // Returns whether plimsoll knows the size of the kernel's internal memory, which may be 0.
  [[nodiscard]] bool is_known() const { return rule != nullptr || is_pointwise || is_view(); }
};

// Returns the properties of an operation; the first call computes them.
const OperationInfo& info_of(const c10::OperatorHandle& op);

}  // namespace plimsoll::simulated
