#include "shrinking.h"

#include <algorithm>
#include <string>

namespace {

// Tries to remove each group of `length` consecutive operations. Removes a group if `differs` is
// still true without it. Returns whether any group was removed.
bool leave_out(Program& program, std::size_t length,
               const std::function<bool(const Program&)>& differs) {
  bool has_any = false;
  for (std::size_t begin = 0; begin < program.operations.size();) {
    Program shorter = program;
    const auto first = shorter.operations.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto left = static_cast<std::size_t>(shorter.operations.end() - first);
    shorter.operations.erase(first, first + static_cast<std::ptrdiff_t>(std::min(length, left)));
    if (differs(shorter)) {
      program = std::move(shorter);
      has_any = true;
    } else {
      begin += length;
    }
  }
  return has_any;
}

// Tries to remove each setting. Removes a setting if `differs` is still true without it. A comma in
// brackets does not separate two settings.
void leave_out_settings(Program& program, const std::function<bool(const Program&)>& differs) {
  for (std::size_t begin = 0; begin < program.settings.size();) {
    std::size_t end = begin;
    for (bool in_list = false; end < program.settings.size(); ++end) {
      const char character = program.settings[end];
      if (character == '[') in_list = true;
      if (character == ']') in_list = false;
      if (character == ',' && !in_list) break;
    }
    Program shorter = program;
    shorter.settings.erase(begin, end + 1 - begin);
    if (!shorter.settings.empty() && shorter.settings.back() == ',') shorter.settings.pop_back();
    if (differs(shorter)) {
      program = std::move(shorter);
    } else {
      begin = end + 1;
    }
  }
}

}  // namespace

Program shrink(Program program, const std::function<bool(const Program&)>& differs) {
  for (std::size_t length = std::max<std::size_t>(program.operations.size() / 2, 1); length > 0;
       length /= 2) {
    leave_out(program, length, differs);
  }
  while (leave_out(program, 1, differs)) {
  }
  leave_out_settings(program, differs);
  Program without = program;
  without.later_settings.clear();
  return differs(without) ? without : program;
}
