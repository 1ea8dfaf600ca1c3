#include "operation/rule_table.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace plimsoll::simulated {
namespace {

struct Table {
  std::unordered_map<std::string, FoundRule> rows;
  std::vector<std::pair<std::string_view, Traits>> families;  // by what their names start with
};

Table& table() {
  static auto* const made = new Table;
  return *made;
}

}  // namespace

void add_rules(std::span<const RuleRow> rows) {
  for (const RuleRow& row : rows) {
    std::string_view name = row.name;
    if (name.ends_with('*')) {
      name.remove_suffix(1);
      table().families.emplace_back(name, row.traits);
      continue;
    }
    const bool is_new = table().rows.emplace(name, FoundRule{row.rule, row.traits}).second;
    TORCH_CHECK(is_new, "plimsoll has two rules for the operation ", name);
  }
}

FoundRule find_rule(const std::string& full, const std::string& plain) {
  FoundRule found;
  for (const std::string& name : {full, plain}) {
    const auto row = table().rows.find(name);
    if (row == table().rows.end()) continue;
    if (found.rule == nullptr) found.rule = row->second.rule;
    found.traits |= row->second.traits;
  }
  for (const auto& [start, traits] : table().families) {
    if (plain.starts_with(start)) found.traits |= traits;
  }
  return found;
}

}  // namespace plimsoll::simulated
