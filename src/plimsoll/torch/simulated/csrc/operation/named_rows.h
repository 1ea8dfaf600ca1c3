// Tables with a row for each operation. Several files add rows to a table when the library is
// loaded.
#pragma once

#include <c10/util/Exception.h>

#include <initializer_list>
#include <string_view>
#include <unordered_map>

namespace plimsoll::simulated {

// Adds rows to a table. All files that use the same type `Row` share one table. Each row has a
// `name`, whose text must live as long as the process. Two rows with the same name are an error.
template <typename Row>
class NamedRows {
 public:
  NamedRows(std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
      TORCH_CHECK(all().emplace(row.name, row).second, "plimsoll has two rows for the operation ",
                  row.name);
    }
  }
  // Returns the row with this name from any file; null if there is none.
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
