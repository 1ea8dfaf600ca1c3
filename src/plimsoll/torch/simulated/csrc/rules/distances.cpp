// Distances between points. Their gradients are computed for every pair of points, and then summed.
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Takes memory for the gradients of all pairs.
void cdist_backward(Call& call) {
  call.allocate_all();
  const at::Tensor grad = call.tensor(0);
  const at::Tensor points = call.tensor(1);
  call.temporary(elements(grad) * static_cast<std::size_t>(points.size(-1)) * points.itemsize());
}

void pdist_backward(Call& call) {
  call.allocate_all();
  const at::Tensor points = call.tensor(1);
  if (points.size(0) > 1) {
    call.temporary(bytes_of(points) * static_cast<std::size_t>(points.size(0) - 1));
  }
}

const RuleTable kDistanceRules{
    {"_cdist_backward", cdist_backward},
    {"_pdist_backward", pdist_backward},
};

}  // namespace
}  // namespace plimsoll::simulated
