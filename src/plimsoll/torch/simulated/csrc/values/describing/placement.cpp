// Rules for operations that move numbers to other positions, or combine the numbers of several
// tensors.
#include <algorithm>
#include <string_view>

#include "device/tensors.h"
#include "values/conversion.h"
#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

double count(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// Returns the share of the result's elements that an operation replaces if it writes to `places`
// positions. Assumes that no position occurs twice.
double replaced(const Operands& of, double places) {
  return std::min(places / std::max(count(of.result()), 1.0), 1.0);
}

// Describes the numbers of an operand that is mixed with another operand. If a random generator
// drew the numbers, the description is their distribution and not the bounds of the drawn values.
// So the description also holds for the values of a later draw.
Description numbers(const Operands& of, std::size_t i) {
  const at::Tensor tensor = of.tensor(i);
  return tensor.defined() && is_simulated(tensor) ? spread_of(tensor) : of[i];
}

Description masked_fill(const Operands& of) {  // (self, mask, value)
  return join(numbers(of, 0), numbers(of, 2), 1 - share(of, 1));
}
Description where(const Operands& of) {  // (condition, self, other)
  return join(numbers(of, 1), numbers(of, 2), share(of, 0));
}
Description scatter(const Operands& of) {  // (self, dim, index, src)
  return join(of[0], of[3], 1 - replaced(of, count(of.tensor(2))));
}
Description slice_scatter(const Operands& of) {  // (self, src, ...)
  return join(of[0], of[1], 1 - replaced(of, count(of.tensor(1))));
}
// Returns the share of `self` that an operation replaces if it writes the positions `index` along
// the dimension `dim`.
double row_share(const Operands& of) {  // (self, dim, index, value)
  const at::Tensor x = of.tensor(0);
  const double size = x.dim() == 0 ? 1 : static_cast<double>(x.size(of.call().argument(1).toInt()));
  return std::min(count(of.tensor(2)) / std::max(size, 1.0), 1.0);
}
Description index_fill(const Operands& of) {
  return join(numbers(of, 0), numbers(of, 3), 1 - row_share(of));
}
// Returns the share of elements that index_put replaces. `indices` are masks or index tensors.
double index_share(const Operands& of) {  // (self, indices, values)
  double part = 1;
  double most = 1;
  std::int64_t dim = 0;
  for (const at::Tensor& index : of.call().tensors(1)) {
    if (!index.defined()) continue;
    if (index.scalar_type() == at::kBool) {
      part *= is_simulated(index) ? share_of(known_of(index).description, at::kBool) : 0.5;
    } else {
      most = std::max(most, count(index));
      part /= std::max<double>(static_cast<double>(of.tensor(0).size(dim)), 1);
    }
    ++dim;
  }
  return std::min(part * most, 1.0);
}
Description index_put(const Operands& of) {
  return join(numbers(of, 0), numbers(of, 2), 1 - index_share(of));
}
Description joined_list(const Operands& of) {
  Description all_of;
  double joined = 0;
  for (const at::Tensor& tensor : of.call().tensors(0)) {
    if (tensor.numel() == 0) continue;
    const Description each =
        in_type(is_simulated(tensor) ? known_of(tensor).description
                                     : Description::of_type(tensor.scalar_type()),
                tensor.scalar_type(), of.result().scalar_type());
    all_of = join(all_of, each, joined / (joined + count(tensor)));
    joined += count(tensor);
  }
  return all_of;
}
Description padded(const Operands& of) {  // (self, pad, value)
  return join(of[0], of.has(2) ? of[2] : Description::constant(0), reduced(of));
}
Description triangle(const Operands& of) { return join(of[0], Description::constant(0)); }
Description identity(const Operands& of) {
  const auto longer = static_cast<double>(std::max(of.result().size(0), of.result().size(1)));
  return as_result(of, Description::truth(1 / longer, true));
}
// Describes the first operand's numbers in the result's type.
Description converted(const Operands& of) { return of.as_numbers(0); }

Replacement where_replaces(const Operands& of) {
  Replacement made{2, 1, share(of, 0), origin_of(of.tensor(0)), false};
  const auto is_tested = [&](std::size_t i) {
    const at::Tensor tensor = of.tensor(i);
    return is_simulated(tensor) && made.mask.is_of(origin_of(tensor));
  };
  const bool keeps_first = is_tested(1) != is_tested(2) ? is_tested(1) : made.share > 0.5;
  return keeps_first ? Replacement{1, 2, 1 - made.share, made.mask, true} : made;
}

Replacement mask_replaces(const Operands& of) {  // (self, mask, value)
  return {0, 2, share(of, 1), origin_of(of.tensor(1)), false};
}

// Describes a replacement by indices. If nonzero() found the indices in a mask, the replaced
// elements are those where this mask is true.
Replacement places_replace(const Operands& of) {  // (self, indices, values)
  Replacement made{0, 2, index_share(of), {}, false};
  for (const at::Tensor& index : of.call().tensors(1)) {
    if (!index.defined() || !is_simulated(index)) continue;
    const Origin origin = origin_of(index);
    if (index.scalar_type() == at::kBool || origin.is_places) made.mask = origin;
  }
  return made;
}
Replacement row_replaces(const Operands& of) {  // (self, dim, index, value)
  const Origin origin = origin_of(of.tensor(2));
  return {0, 3, row_share(of), origin.is_places ? origin : Origin(), false};
}

const DescribeTable kPlacementDescriptions{
    {"clone", self},
    {"contiguous", self},
    {"_to_copy", converted},
    {"flip", elsewhere},
    {"roll", elsewhere},
    {"repeat", elsewhere},
    {"index_select", elsewhere},
    {"gather", elsewhere},
    {"take", elsewhere},
    {"index", elsewhere},
    {"masked_select", elsewhere},
    {"masked_fill", masked_fill},
    {"masked_scatter", masked_fill},
    {"where", where},
    {"index_put", index_put},
    {"_index_put_impl", index_put},
    {"index_copy", index_fill},
    {"scatter", scatter},
    {"slice_scatter", slice_scatter},
    {"select_scatter", slice_scatter},
    {"index_fill", index_fill},
    {"fill", [](const Operands& of) { return of[1]; }},
    {"zero", zero},
    {"zeros_like", zero},
    {"ones_like", one},
    {"full", [](const Operands& of) { return of[1]; }},
    {"full_like", [](const Operands& of) { return of[1]; }},
    {"eye", identity},
    {"cat", joined_list},
    {"stack", joined_list},
    {"constant_pad_nd", padded},
    {"tril", triangle},
    {"triu", triangle},
    {"embedding", elsewhere},
    {"upsample_nearest2d", elsewhere},
    {"nan_to_num", self},
};

}  // namespace

std::optional<Replacement> replacement_of(const Operands& of) {
  std::string_view name = of.call().info().plain_name;
  if (name.ends_with('_')) name.remove_suffix(1);
  std::optional<Replacement> made;
  if (name == "where" && of.has(2)) made = where_replaces(of);
  if (name == "masked_fill" || name == "masked_scatter") made = mask_replaces(of);
  if (name == "index_put" || name == "_index_put_impl") made = places_replace(of);
  if (name == "index_copy" || name == "index_fill") made = row_replaces(of);
  if (!made) return std::nullopt;
  const at::Tensor kept = of.tensor(made->kept);
  const bool is_part = is_simulated(kept) && kept.sizes() == of.result().sizes() &&
                       kept.scalar_type() == of.result().scalar_type();
  return is_part ? made : std::nullopt;
}

}  // namespace plimsoll::simulated
