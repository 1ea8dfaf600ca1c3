// The same numbers in other places, and numbers of several tensors.
#include "describing.h"

namespace plimsoll::simulated {
namespace {

template <std::size_t First, std::size_t Second>
Description joined(const Operands& of) {
  return join(of[First], of[Second]);
}
Description joined_list(const Operands& of) {
  Description all_of;
  bool is_first = true;
  for (const at::Tensor& tensor : of.call().tensors(0)) {
    if (tensor.numel() == 0) continue;
    const Description each = is_simulated(tensor) ? known_of(tensor).description
                                                  : Description::of_type(tensor.scalar_type());
    all_of = is_first ? each : join(all_of, each);
    is_first = false;
  }
  return all_of;
}

constexpr DescribeRow kPlacementDescriptions[] = {
    {"clone", self},
    {"contiguous", self},
    {"_to_copy", self},
    {"flip", elsewhere},
    {"roll", elsewhere},
    {"repeat", elsewhere},
    {"index_select", elsewhere},
    {"gather", elsewhere},
    {"take", elsewhere},
    {"index", elsewhere},
    {"masked_select", elsewhere},
    {"masked_fill", joined<0, 2>},
    {"where", joined<1, 2>},
    {"index_put", joined<0, 2>},
    {"_index_put_impl", joined<0, 2>},
    {"index_copy", joined<0, 3>},
    {"scatter", joined<0, 3>},
    {"slice_scatter", joined<0, 1>},
    {"select_scatter", joined<0, 1>},
    {"index_fill", joined<0, 3>},
    {"fill", [](const Operands& of) { return of[1]; }},
    {"zero", zero},
    {"zeros_like", zero},
    {"ones_like", one},
    {"full", [](const Operands& of) { return of[1]; }},
    {"full_like", [](const Operands& of) { return of[1]; }},
    {"cat", joined_list},
    {"stack", joined_list},
    {"constant_pad_nd", joined<0, 2>},
    {"tril", [](const Operands& of) { return join(of[0], Description::constant(0)); }},
    {"triu", [](const Operands& of) { return join(of[0], Description::constant(0)); }},
    {"embedding", self},
    {"upsample_nearest2d", self},
    {"nan_to_num", self},
};

}  // namespace

std::span<const DescribeRow> placement_descriptions() { return kPlacementDescriptions; }

}  // namespace plimsoll::simulated
