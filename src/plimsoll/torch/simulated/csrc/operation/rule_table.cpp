#include "operation/rule_table.h"

#include <string_view>
#include <utility>
#include <vector>

#include "operation/named_rows.h"

namespace plimsoll::simulated {
namespace {

// Returns the families of operations. All names in a family begin with the same prefix. Each entry
// has this prefix and the family's traits.
std::vector<std::pair<std::string_view, Traits>>& families() {
  static auto* const made = new std::vector<std::pair<std::string_view, Traits>>;
  return *made;
}

void add(const RuleRow& row) {
  std::string_view name = row.name;
  if (!name.ends_with('*')) {
    NamedRows<RuleRow>({row});
    return;
  }
  name.remove_suffix(1);
  families().emplace_back(name, row.traits);
}

}  // namespace

RuleTable::RuleTable(std::initializer_list<RuleRow> rows) {
  for (const RuleRow& row : rows) add(row);
}

RuleTable::RuleTable(std::span<const char* const> names, Rule rule) {
  for (const char* const name : names) add({name, rule});
}

FoundRule find_rule(const std::string& full, const std::string& plain) {
  FoundRule found;
  for (const std::string& name : {full, plain}) {
    const RuleRow* const row = NamedRows<RuleRow>::find(name);
    if (row == nullptr) continue;
    if (found.rule == nullptr) found.rule = row->rule;
    found.traits |= row->traits;
  }
  for (const auto& [start, traits] : families()) {
    if (plain.starts_with(start)) found.traits |= traits;
  }
  return found;
}

}  // namespace plimsoll::simulated
