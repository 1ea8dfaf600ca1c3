#include "describe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "describing/describing.h"

namespace plimsoll::simulated {
namespace {

using Rows = std::unordered_map<std::string_view, const DescribeRow*>;

const Rows& rows() {
  static const auto* const all = [] {
    auto* const made = new Rows;
    for (const auto table : {arithmetic_descriptions(), choice_descriptions(),
                             drawing_descriptions(), limit_descriptions(), placement_descriptions(),
                             reduction_descriptions(), truth_descriptions()}) {
      for (const DescribeRow& row : table) {
        const bool is_new = made->emplace(row.name, &row).second;
        TORCH_CHECK(is_new, "plimsoll has two descriptions of the operation ", row.name);
      }
    }
    return made;
  }();
  return *all;
}

Describe find(const Call& call, std::size_t result) {
  std::string_view name = call.info().plain_name;
  constexpr std::string_view kList = "_foreach_";
  if (name.starts_with(kList)) name.remove_prefix(kList.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto place = rows().find(name);
  if (place == rows().end()) return kAny;
  return result == 0 ? place->second->first : result == 1 ? place->second->second : kAny;
}

// A copy draws from the same series, so that its elements are those of what it was copied from.
bool keeps_elements(const Call& call) {
  const std::string& name = call.info().plain_name;
  return name == "clone" || name == "contiguous" || name == "_to_copy";
}

// index_put and scatter may add to what is there, instead of replacing it.
bool accumulates(const Call& call) {
  const std::string& name = call.info().plain_name;
  if (!name.starts_with("index_put") && !name.starts_with("_index_put") &&
      !name.starts_with("scatter")) {
    return false;
  }
  return std::any_of(call.arguments().begin(), call.arguments().end(), [](const auto& argument) {
    return argument.isString() || (argument.isBool() && argument.toBool());
  });
}

}  // namespace

Known describe_written(const Call& call, const Written& written) {
  const Operands operands(call, written);
  const at::ScalarType type = written.tensor.scalar_type();
  Known known;
  known.description = Description::of_type(type);
  const Describe rule = find(call, written.result);
  if (rule == kAny) return known;
  if (accumulates(call)) return known;
  try {
    known.description = in_type(rule(operands), type, type);
  } catch (const c10::Error&) {  // a rule that does not know this overload
    return known;
  }
  if (keeps_elements(call) && operands.tensor(0).strides() == written.tensor.strides()) {
    const Known source = operands.known(0);
    known.series = source.series;
    known.first = source.first;
  }
  return known;
}

}  // namespace plimsoll::simulated
