// Tables by operation whose rows are in several files, which add them when the library is loaded.
#pragma once

#include <c10/util/Exception.h>

#include <initializer_list>
#include <string_view>
#include <unordered_map>

namespace plimsoll::simulated {

// Some rows of the table. Each has a `name` that is never freed; two rows of one name are an error.
template <typename Row>
class NamedRows {
 public:
  NamedRows(std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
      TORCH_CHECK(all().emplace(row.name, row).second, "plimsoll has two rows for the operation ",
                  row.name);
    }
  }
  // Finds a row among those of all files; null if there is none.
  static const Row* find(std::string_view name) {
    const auto place = all().find(name);
    return place == all().end() ? nullptr : &place->second;
  }

 private:
  static std::unordered_map<std::string_view, Row>& all() {
    static auto* const rows = new std::unordered_map<std::string_view, Row>;
    return *rows;
  }
};

}  // namespace plimsoll::simulated
