// Running sums, products and maxima.
#include "rules/cub.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

void scan(Call& call) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor result = call.allocate(0);
  if (self.dim() == 0 || self.numel() == 0) return;
  if (self.scalar_type() != result.scalar_type() || !self.is_contiguous()) {
    call.temporary(elements(self) * result.itemsize());
  }
  if (self.dim() == 1 || self.numel() == self.size(call.argument(1).toInt())) {
    scratch(call, cub::scan(elements(self), result.scalar_type()));
  }
}

void logarithmic_scan(Call& call) {  // has no Meta kernel
  const at::Tensor self = call.tensor(0);
  call.set_shape(0, meta_contiguous(self));
  scan(call);
}

const RuleTable kScanRules{
    {"cumsum", scan, kNoOwnOverlap},
    {"cumsum_", scan, kNoOwnOverlap},
    {"cumprod", scan, kNoOwnOverlap},
    {"cumprod_", scan, kNoOwnOverlap},
    {"_logcumsumexp", logarithmic_scan, kNoOwnOverlap},
    {"logcumsumexp", scan, kNoOwnOverlap},
};

}  // namespace
}  // namespace plimsoll::simulated
