#include "rules.h"

#include <string>
#include <unordered_map>

namespace plimsoll::simulated {
namespace {

const std::unordered_map<std::string, Rule>& table() {
  static const auto* const rules = [] {
    auto* const made = new std::unordered_map<std::string, Rule>;
    for (const auto rows : {matmul_rules(), attention_rules(), normalization_rules(),
                            convolution_rules(), reduction_rules(), sorting_rules(),
                            indexing_rules(), recurrent_rules(), shape_rules(), module_rules()}) {
      for (const RuleRow& row : rows) made->emplace(row.name, row.rule);
    }
    return made;
  }();
  return *rules;
}

}  // namespace

RuleEntry find_rule(const std::string& qualified, const std::string& plain) {
  for (const std::string& name : {qualified, plain}) {
    if (const auto row = table().find(name); row != table().end()) return {row->second, true};
  }
  return {};
}

}  // namespace plimsoll::simulated
