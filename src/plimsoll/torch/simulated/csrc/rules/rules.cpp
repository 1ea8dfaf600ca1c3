#include "rules.h"

#include <string_view>
#include <unordered_map>
#include <vector>

namespace plimsoll::simulated {
namespace {

struct Tables {
  std::unordered_map<std::string, Found> rows;
  std::vector<std::pair<std::string_view, Traits>> families;  // by what their names start with

  Tables() {
    for (const auto table :
         {matmul_rules(), attention_rules(), normalization_rules(), convolution_rules(),
          reduction_rules(), sorting_rules(), indexing_rules(), recurrent_rules(), shape_rules(),
          storage_rules(), module_rules()}) {
      for (const RuleRow& row : table) {
        std::string_view name = row.name;
        if (name.ends_with('*')) {
          name.remove_suffix(1);
          families.emplace_back(name, row.traits);
        } else {
          rows.emplace(name, Found{row.rule, row.traits});
        }
      }
    }
  }
};

}  // namespace

Found find_rule(const std::string& full, const std::string& plain) {
  static const auto* const tables = new Tables;
  Found found;
  for (const std::string& name : {full, plain}) {
    if (const auto row = tables->rows.find(name); row != tables->rows.end()) {
      if (found.rule == kUnknown) found.rule = row->second.rule;
      found.traits |= row->second.traits;
    }
  }
  for (const auto& [start, traits] : tables->families) {
    if (plain.starts_with(start)) found.traits |= traits;
  }
  return found;
}

}  // namespace plimsoll::simulated
