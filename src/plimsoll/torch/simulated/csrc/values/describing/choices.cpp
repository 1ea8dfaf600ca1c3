// Describes the results of operations that return indices, such as argmax, sort and multinomial.
#include <algorithm>

#include "values/describing/describing.h"

namespace plimsoll::simulated {
namespace {

std::int64_t size_of(const Operands& of, std::size_t dim_argument) {
  const at::Tensor x = of.tensor(0);
  if (x.dim() == 0) return 1;
  if (!of.has(dim_argument)) return std::max<std::int64_t>(x.numel(), 1);
  return std::max<std::int64_t>(x.size(of.call().argument(dim_argument).toInt()), 1);
}

Description places_of_largest(const Operands& of) {  // topk: (self, k, dim)
  const std::int64_t count = size_of(of, 2);
  const std::int64_t k = of.call().argument(1).toInt();
  const at::Tensor x = of.tensor(0);
  const bool is_last = x.dim() == 0 || of.call().argument(2).toInt() % x.dim() == x.dim() - 1 ||
                       of.call().argument(2).toInt() == -1;
  return Description::chosen(count, is_last ? k : 1);
}
// Describes the indices that sort(self, dim, descending) and its stable form return: a permutation.
Description order(const Operands& of) {
  const at::Tensor x = of.tensor(0);
  if (x.dim() == 0) return Description::constant(0);
  std::int64_t dim = -1;
  for (std::size_t i = 1; i < of.call().argument_count(); ++i) {
    if (of.call().argument(i).isInt()) dim = of.call().argument(i).toInt();
  }
  if (dim < 0) dim += x.dim();
  const std::int64_t count = std::max<std::int64_t>(x.size(dim), 1);
  return Description::chosen(count, of.result().stride(dim) == 1 ? count : 1);
}
Description samples(const Operands& of) {  // multinomial: (self, num_samples, replacement)
  const bool again = of.call().argument(2).toBool();
  const std::int64_t count = size_of(of, 99);
  const at::Tensor x = of.tensor(0);
  const std::int64_t classes = x.dim() == 0 ? count : x.size(-1);
  return Description::chosen(classes, again ? 1 : of.call().argument(1).toInt());
}

const DescribeTable kChoiceDescriptions{
    {"argmax", place_of_extreme},
    {"argmin", place_of_extreme},
    {"topk", bounds, places_of_largest},
    {"sort", elsewhere, order},
    {"argsort", order},
    {"multinomial", samples},
    {"randperm",
     [](const Operands& of) {
       const std::int64_t count = std::max<std::int64_t>(of.result().numel(), 1);
       return Description::chosen(count, count);
     }},
};

}  // namespace

Description place_of_extreme(const Operands& of) { return Description::chosen(size_of(of, 1)); }
Description place_of_kth(const Operands& of) { return Description::chosen(size_of(of, 2)); }

}  // namespace plimsoll::simulated
