#include "values/describe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "device/tensors.h"
#include "values/conversion.h"
#include "values/describing/describing.h"
#include "values/ways.h"

namespace plimsoll::simulated {
namespace {

using Rows = std::unordered_map<std::string_view, const DescribeRow*>;

const Rows& rows() {
  static const auto* const all = [] {
    auto* const made = new Rows;
    for (const auto table :
         {arithmetic_descriptions(), choice_descriptions(), drawing_descriptions(),
          limit_descriptions(), placement_descriptions(), recurrent_descriptions(),
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
  const DescribeRow& row = *place->second;
  return result == 0 ? row.first : result == 1 ? row.second : result == 2 ? row.third : kAny;
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

// Truth values that take the place of those that they were chosen by: `where(open, still_open,
// open)`. They are as the rule says where they are new, and elsewhere as the choice was.
Description chosen_truth(const Operands& of, const Replacement& replaced, Origin& origin) {
  const Origin kept = origin_of(of.tensor(replaced.kept));
  const bool is_kept_true = (kept.is_turned == replaced.mask.is_turned) == replaced.is_turned;
  const at::Tensor fresh = of.tensor(replaced.fresh);
  const Description drawn = of[replaced.fresh];
  const double is_true =
      replaced.share * share_of(drawn, fresh.defined() ? fresh.scalar_type() : at::kBool);
  const double rest = 1 - replaced.share;
  origin.open = std::min(origin.open, is_kept_true ? replaced.share - is_true : is_true);
  const bool is_random =
      of[replaced.kept].is_random() && (drawn.is_random() || drawn.is_constant());
  return Description::truth(is_kept_true ? rest + is_true : is_true, is_random);
}

// An operand's origin; it is not known for a tensor of the host.
Origin operand_origin(const Operands& of, std::size_t i) {
  const at::Tensor tensor = of.tensor(i);
  return tensor.defined() && is_simulated(tensor) ? origin_of(tensor) : Origin();
}

// How the result came about, and what that says of it besides.
void describe_origin(const Operands& of, const Written& written, Known& known) {
  const bool is_truth = written.tensor.scalar_type() == at::kBool;
  const auto replaced = written.result == 0 ? replacement_of(of) : std::nullopt;
  const Origin kept = replaced ? origin_of(of.tensor(replaced->kept)) : Origin();
  if (kept.is_known()) {
    const Origin& mask = replaced->mask;
    const Origin fresh = operand_origin(of, replaced->fresh);
    // A constant may meet the condition too, and so may numbers made of those that it replaces.
    const bool is_drawn_anew = fresh.is_known() && !fresh.is_of(kept);
    known.origin = kept.with_replaced(
        replaced->share,
        {is_drawn_anew ? mask.way : 0, mask.is_turned != replaced->is_turned, replaced->share});
    if (is_truth && kept.state == mask.state) {
      known.description = chosen_truth(of, *replaced, known.origin);
    }
    return;
  }
  known.origin = origin_of_written(of.call(), written);
  // A copy and a negation are what they are of: their condition is settled there.
  const bool is_new = operand_origin(of, 0).state != known.origin.state;
  if (is_truth && is_new) known.description = settled_truth(known.description, known.origin);
}

}  // namespace

Known describe_written(const Call& call, const Written& written) {
  const Operands operands(call, written);
  const at::ScalarType type = written.tensor.scalar_type();
  Known known;
  known.description = Description::of_type(type);
  const Describe rule = accumulates(call) ? kAny : find(call, written.result);
  try {
    if (rule != kAny) known.description = in_type(rule(operands), type, type);
    if (!accumulates(call)) describe_origin(operands, written, known);
  } catch (const c10::Error&) {  // a rule that does not know this overload
    return known;
  }
  if (rule != kAny && keeps_elements(call) &&
      operands.tensor(0).strides() == written.tensor.strides()) {
    const Known source = operands.known(0);
    known.series = source.series;
    known.first = source.first;
  }
  return known;
}

}  // namespace plimsoll::simulated
