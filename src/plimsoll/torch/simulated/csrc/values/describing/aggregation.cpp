// Describes the results of operations that combine several numbers into one: sums, extremes,
// distances, losses.
#include <algorithm>
#include <cmath>
#include <vector>

#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

// Returns whether the call sums over one dimension only, and the numbers along that dimension add
// up to one.
bool sums_rows(const Operands& of, const Description& x) {
  if (!of.has(1) || !of.call().argument(1).isIntList()) return false;
  const std::vector<std::int64_t> dims = of.call().argument(1).toIntVector();
  return dims.size() == 1 && of.tensor(0).stride(dims[0]) == x.sum_stride;
}

Description sum(const Operands& of) {
  const Description x = of[0];
  const double count = reduced(of);
  if (x.sums_to_one != 0 && static_cast<double>(x.sums_to_one) == count && sums_rows(of, x)) {
    return Description::constant(1);
  }
  if (x.is_constant()) return Description::constant(x.low * count);
  const at::Tensor from = of.tensor(0);
  if (from.scalar_type() == at::kBool) {
    // The sum counts the true elements. If `x` is not random, the program's data decide the count.
    return Description::counted(x.mean * count, count, x.is_random());
  }
  if (x.is_whole && x.low == 0 && x.high == 1 && x.atom_share() > 1 - kHardlyEver) {
    const Chance ones = x.share_at(1);
    return Description::counted(ones.share * count, count, ones.is_random);
  }
  if (x.spread == Description::Spread::normal && x.atom_share() == 0) {
    return Description::normal(x.mean * count, x.deviation * std::sqrt(count));
  }
  return bounded(x.low >= 0 ? 0 : -kNone, x.high <= 0 ? 0 : kNone);
}

Description running_sum(const Operands& of) {  // (self, dim)
  const at::Tensor from = of.tensor(0);
  const Description x = of[0];
  if (x.is_constant() && x.low == 0) return x;
  const auto count =
      from.dim() == 0 ? 1.0 : static_cast<double>(from.size(of.call().argument(1).toInt()));
  return bounded(std::min(x.low, x.low * count), std::max(x.high, x.high * count));
}

Description mean(const Operands& of) {
  const Description x = of[0];
  if (x.is_constant()) return x;
  if (x.spread == Description::Spread::normal && x.atom_share() == 0) {
    return Description::normal(x.mean, x.deviation / std::sqrt(reduced(of)));
  }
  if (x.is_whole && x.low == 0 && x.high == 1) {  // the mean is the share of ones
    Description of_ones = linear(sum(of), 1 / reduced(of), 0);
    of_ones.high = std::min(of_ones.high, 1.0);
    return of_ones;
  }
  return bounded(x.low, x.high);
}

// Describes the truth of a random event. The outcome never becomes quite certain, however many
// draws there are.
Description drawn_truth(double share) {
  constexpr double kNever = 1e-12;
  return Description::truth(std::clamp(share, kNever, 1 - kNever), true);
}
// Returns the chance of at least one hit in `count` independent draws.
double any_of(double share, double count) { return -std::expm1(count * std::log1p(-share)); }

Description all(const Operands& of) {
  const Description x = of[0];
  if (x.is_constant()) return Description::constant(x.low != 0 ? 1 : 0);
  if (x.is_random()) return drawn_truth(1 - any_of(1 - share(of, 0), reduced(of)));
  return Description::likely(share(of, 0) < kHardlyEver ? 0 : 1);
}
Description any(const Operands& of) {
  const Description x = of[0];
  if (x.is_constant()) return Description::constant(x.low != 0 ? 1 : 0);
  if (x.is_random()) return drawn_truth(any_of(share(of, 0), reduced(of)));
  const bool is_none = share(of, 0) < kHardlyEver || share(of, 0) * reduced(of) < 0.5;
  return Description::likely(is_none ? 0 : 1);
}
template <Describe OfTruth>
Description extreme(const Operands& of) {
  return of.tensor(0).scalar_type() == at::kBool ? OfTruth(of) : bounds(of);
}

const DescribeTable kReductionDescriptions{
    {"sum", sum},
    {"nansum", sum},
    {"mean", mean},
    {"amax", extreme<any>},
    {"amin", extreme<all>},
    {"max", extreme<any>, place_of_extreme},
    {"min", extreme<all>, place_of_extreme},
    {"median", bounds, place_of_extreme},
    {"mode", bounds, place_of_extreme},
    {"kthvalue", bounds, place_of_kth},
    {"norm", not_negative},
    {"linalg_vector_norm", not_negative},
    {"var", not_negative},
    {"std", not_negative},
    {"var_mean", not_negative, bounds},
    {"std_mean", not_negative, bounds},
    {"count_nonzero",
     [](const Operands& of) {
       const double count = reduced(of);
       return Description::counted(share(of, 0) * count, count, of[0].is_random());
     }},
    {"all", all},
    {"any", any},
    {"cumsum", running_sum},
    {"max_pool2d_with_indices", bounds},
    {"_adaptive_avg_pool2d", bounds},
    {"dist", not_negative},
    {"_cdist_forward", not_negative},
    {"_euclidean_dist", not_negative},
    {"nll_loss_forward", not_negative},
    {"nll_loss2d_forward", not_negative},
    {"mse_loss", not_negative},
    {"smooth_l1_loss", not_negative},
    {"huber_loss", not_negative},
    {"binary_cross_entropy", not_negative},
    {"binary_cross_entropy_with_logits", not_negative},
    {"_ctc_loss", not_negative},
    {"_cudnn_ctc_loss", not_negative},
};

}  // namespace
}  // namespace plimsoll::simulated
