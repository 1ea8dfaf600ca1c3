#include "rules.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace plimsoll::simulated {
namespace {

constexpr const char* kNoTemporaries[] = {
#include "no_temporaries.inc"
};

class Tables {
 public:
  Tables() {
    for (const auto table :
         {activation_rules(), attention_rules(), convolution_rules(),    counting_rules(),
          distance_rules(),   embedding_rules(), filling_rules(),        fourier_rules(),
          image_rules(),      indexing_rules(),  linear_algebra_rules(), list_rules(),
          loss_rules(),       matmul_rules(),    normalization_rules(),  random_rules(),
          recurrent_rules(),  reduction_rules(), scan_rules(),           shape_rules(),
          sorting_rules(),    storage_rules(),   transformer_rules()}) {
      for (const RuleRow& row : table) add(row);
    }
    for (const char* const name : kNoTemporaries) add({name, nothing});
  }

  Found find(const std::string& full, const std::string& plain) const {
    Found found;
    for (const std::string& name : {full, plain}) {
      const auto row = rows_.find(name);
      if (row == rows_.end()) continue;
      if (found.rule == kUnknown) found.rule = row->second.rule;
      found.traits |= row->second.traits;
    }
    for (const auto& [start, traits] : families_) {
      if (plain.starts_with(start)) found.traits |= traits;
    }
    return found;
  }

 private:
  void add(const RuleRow& row) {
    std::string_view name = row.name;
    if (name.ends_with('*')) {
      name.remove_suffix(1);
      families_.emplace_back(name, row.traits);
      return;
    }
    const bool is_new = rows_.emplace(name, Found{row.rule, row.traits}).second;
    TORCH_CHECK(is_new, "plimsoll has two rules for the operation ", name);
  }

  std::unordered_map<std::string, Found> rows_;
  std::vector<std::pair<std::string_view, Traits>> families_;  // by what their names start with
};

}  // namespace

Found find_rule(const std::string& full, const std::string& plain) {
  static const auto* const tables = new Tables;
  return tables->find(full, plain);
}

}  // namespace plimsoll::simulated
