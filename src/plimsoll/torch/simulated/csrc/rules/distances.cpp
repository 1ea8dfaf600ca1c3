// Distances between points. Their gradients are computed for every pair of points, and then summed.
#include <vector>

#include "rules/reduction.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Takes memory for the gradients of all pairs. Sums the gradients over a dimension into the result.
void sum_pairs(Call& call, const at::Tensor& pairs, std::int64_t dimension) {
  call.temporary(bytes_of(pairs));
  reduce_to_sum(call, call.shape_of_result(0), pairs, dimension);
}

// Simulates _cdist_backward(grad, x1, x2, p, cdist).
void cdist_backward(Call& call) {
  call.allocate_all();
  const at::Tensor grad = call.tensor(0);
  const at::Tensor points = call.tensor(1);
  std::vector<std::int64_t> sizes = points.sizes().vec();
  const auto others = points.dim() - 2;
  sizes.insert(sizes.begin() + others, grad.size(-1));
  sum_pairs(call, meta_empty(sizes, points.scalar_type()), others);
}

void pdist_backward(Call& call) {
  call.allocate_all();
  const at::Tensor points = call.tensor(1);
  const std::int64_t count = points.size(0);
  if (count < 2) return;
  sum_pairs(call, meta_empty({count - 1, count, points.size(1)}, points.scalar_type()), 0);
}

const RuleTable kDistanceRules{
    {"_cdist_backward", cdist_backward},
    {"_pdist_backward", pdist_backward},
};

}  // namespace
}  // namespace plimsoll::simulated
