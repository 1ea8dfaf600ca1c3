// Operations that draw random numbers, permutations and samples.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "rules/cub.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

void randperm(Call& call) {
  const at::Tensor result = call.allocate(0);
  const std::size_t n = elements(result);
  if (n == 0) return;
  const std::size_t size = result.itemsize();
  scratch(call, size);
  const double wide = static_cast<double>(n);
  // randperm sorts random keys. It draws enough bits per key to make equal keys unlikely.
  const double space = wide - (6 * wide * wide + 1) / (12 * std::log(0.9));
  const auto bits = static_cast<std::size_t>(std::min(64.0, std::ceil(std::log2(space))));
  const std::size_t key = bits <= 32 ? 4 : 8;
  call.temporary(n * size);
  call.temporary(n * key);
  call.temporary(n * key);
  call.temporary(cub::radix_sort(n, key, size, bits, false));
}

void multinomial(Call& call) {  // (self, num_samples, replacement)
  const at::Tensor self = call.tensor(0);
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  const std::int64_t samples = call.argument(1).toInt();
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(call.argument(2).toBool() || samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  const std::size_t size = self.itemsize();
  const std::size_t bytes = elements(self) * size;
  call.allocate_all();
  if (self.numel() == 0) return;
  if (call.argument(2).toBool() && samples != 1) {
    for (int i = 0; i < 3; ++i) call.temporary(bytes);
    return;
  }
  // PyTorch checks that all weights are finite and none is negative.
  const std::size_t largest = call.run([self] { return std::vector{at::max(self)}; });
  const std::size_t is_finite = call.temporary(1);
  const std::size_t smallest = call.run([self] { return std::vector{at::min(self)}; });
  const std::size_t is_positive = call.temporary(1);
  call.temporary(1);
  for (const std::size_t done : {is_positive, smallest, is_finite, largest}) call.release(done);
  // PyTorch checks that no row has only zeros.
  const std::size_t rows = self.dim() == 2 ? static_cast<std::size_t>(self.size(0)) : 1;
  const std::size_t sums = call.run(
      [self] { return std::vector{self.dim() == 2 ? at::sum(self, {1}) : at::sum(self)}; });
  const std::size_t are_zero = call.temporary(rows);
  if (self.dim() == 2) {
    call.temporary(1);
    call.release(are_zero);
  }
  call.release(sums);
  scratch(call, 1);
  const std::size_t noise = call.temporary(bytes);
  if (samples != 1) scratch(call, rows * static_cast<std::size_t>(samples) * size);
  call.release(noise);
}

void binomial(Call& call) {  // (count, prob); has no Meta kernel
  const auto sizes = at::infer_size(call.tensor(0).sizes(), call.tensor(1).sizes());
  call.set_shape(0, meta_empty(sizes, call.tensor(0).scalar_type()));
}

void sample_dirichlet(Call& call) {  // has no Meta kernel
  const at::Tensor self = call.tensor(0);
  call.set_shape(0, meta_contiguous(self));
  call.allocate_all();
  if (self.numel() == 0 || self.dim() == 0) return;
  call.temporary(elements(self) / static_cast<std::size_t>(self.size(-1)) * self.itemsize());
}

// Simulates normal(mean, std) with a tensor of means. The kernel takes a temporary tensor of the
// result's size.
void normal_around(Call& call) { call.temporary(bytes_of(call.allocate(0))); }

// Simulates normal(mean, std) with a tensor of deviations. The kernel allocates a temporary tensor
// of one element.
void normal_of_width(Call& call) { call.temporary(call.allocate(0).itemsize()); }

const RuleTable kRandomRules{
    {"randperm", randperm, kOverwrites},
    {"multinomial", multinomial},
    {"binomial", binomial},
    {"_sample_dirichlet", sample_dirichlet},
    {"random_", nothing, kOverwrites},
    {"normal_", nothing, kOverwrites},
    {"uniform_", nothing, kOverwrites},
    {"bernoulli_", nothing, kOverwrites},
    {"aten::normal.Tensor_float", normal_around},
    {"aten::normal.float_Tensor", normal_of_width},
};

}  // namespace
}  // namespace plimsoll::simulated
