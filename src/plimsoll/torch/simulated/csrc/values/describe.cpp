#include "values/describe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "device/tensors.h"
#include "values/conversion.h"
#include "values/describing/describing.h"
#include "values/ways.h"

namespace plimsoll::simulated {
namespace {

Describe find(const Call& call, std::size_t result) {
  std::string_view name = call.info().plain_name;
  constexpr std::string_view kList = "_foreach_";
  if (name.starts_with(kList)) name.remove_prefix(kList.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const DescribeRow* const row = DescribeTable::find(name);
  if (row == nullptr) return kAny;
  return result == 0 ? row->first : result == 1 ? row->second : result == 2 ? row->third : kAny;
}

// Returns whether the result's elements equal the operand's elements. If the elements are random,
// plimsoll must draw equal numbers for both tensors, so both use one random series (description.h).
bool keeps_elements(const Call& call) {
  const std::string& name = call.info().plain_name;
  return name == "clone" || name == "contiguous" || name == "_to_copy";
}

// Returns whether an index_put or a scatter adds to the elements instead of replacing them.
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

// Describes the result of an operation that replaces elements of a tensor of truth values, and uses
// this tensor itself as the mask. An example is `where(open, still_open, open)`. The elements that
// are not replaced are then all true, or all false.
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

// Returns an operand's origin (how it was computed; see origin.h). The origin of a host tensor is
// unknown.
Origin operand_origin(const Operands& of, std::size_t i) {
  const at::Tensor tensor = of.tensor(i);
  return tensor.defined() && is_simulated(tensor) ? origin_of(tensor) : Origin();
}

// Sets the result's origin, and corrects the description by what the origin implies.
void describe_origin(const Operands& of, const Written& written, Known& known) {
  const bool is_truth = written.tensor.scalar_type() == at::kBool;
  const auto replaced = written.result == 0 ? replacement_of(of) : std::nullopt;
  const Origin kept = replaced ? origin_of(of.tensor(replaced->kept)) : Origin();
  if (kept.is_known()) {
    const Origin& mask = replaced->mask;
    const Origin fresh = operand_origin(of, replaced->fresh);
    // If the new elements are newly drawn, the mask's condition is settled (origin.h). Only the new
    // elements can meet the condition then, and they are the fraction `replaced->share` of all
    // elements. If the new elements are constants, or were computed from the old elements, every
    // new element may meet the condition again. Then the condition is not settled.
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
  // A copy or a negation keeps the operand's origin. Then the operand's description is already
  // corrected by what the origin implies.
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
  } catch (const c10::Error&) {  // the rule was not made for this overload
    return known;
  }
  known.description.is_given = keeps_elements(call) && operands.known(0).description.is_given;
  if (rule != kAny && keeps_elements(call) &&
      operands.tensor(0).strides() == written.tensor.strides()) {
    const Known source = operands.known(0);
    known.series = source.series;
    known.first = source.first;
  }
  return known;
}

}  // namespace plimsoll::simulated
