// Distances between points. The backward kernels compute a gradient for every pair of points, and
// then sum these gradients.
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

// Simulates _cdist_backward(grad, x1, x2, p, cdist). The kernel copies x1 or x2 if that tensor is
// broadcast over the batch. It computes a gradient for each pair of points, and then sums these
// gradients. If p is 0, it computes no gradients of pairs
// (aten/src/ATen/native/Distance.cpp, cuda/DistanceKernel.cu).
void cdist_backward(Call& call) {
  const at::Tensor grad = call.tensor(0);
  const at::Tensor points = call.tensor(1);
  const at::Tensor others = call.tensor(2);
  const std::int64_t pairs = grad.size(-1) * grad.size(-2);
  const std::int64_t width = points.size(-1);
  if (grad.numel() == 0 || width == 0) {
    call.allocate_all();
    return;
  }
  const std::int64_t batch = grad.numel() / pairs;
  for (const at::Tensor& each : {points, others}) {
    const auto expanded = static_cast<std::size_t>(batch * each.size(-2) * width) * each.itemsize();
    if (bytes_of(each) < expanded) {
      call.temporary(expanded);
    } else {
      copy_unless_contiguous(call, each);
    }
  }
  copy_unless_contiguous(call, call.tensor(4));
  copy_unless_contiguous(call, grad);
  call.allocate_all();
  if (call.argument(3).toScalar().toDouble() == 0) return;
  const at::Tensor of_pairs =
      meta_empty({batch, grad.size(-1), grad.size(-2), width}, points.scalar_type());
  const at::Tensor sum = meta_empty({batch, grad.size(-2), width}, points.scalar_type());
  call.temporary(bytes_of(of_pairs));
  reduce_to_sum(call, sum, of_pairs, 1);
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
