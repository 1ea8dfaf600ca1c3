// Operations on lists of tensors, which optimizers use. The rules are for lists that one kernel
// computes (execute/by_element.h). Norms of lists need memory for partial results.
#include <algorithm>
#include <vector>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Returns the number of partial results, one per chunk. Each tensor gets as many chunks as the
// longest tensor needs.
std::size_t chunk_results(const std::vector<at::Tensor>& list) {
  constexpr std::size_t kChunk = 65536;
  std::size_t chunks = 0;
  for (const at::Tensor& tensor : list) {
    chunks = std::max(chunks, (elements(tensor) + kChunk - 1) / kChunk);
  }
  return list.size() * chunks;
}

void foreach_norm(Call& call) {
  const std::vector<at::Tensor> list = call.tensors(0);
  const std::size_t item = std::max<std::size_t>(list[0].itemsize(), sizeof(float));
  const std::size_t partial = call.temporary(chunk_results(list) * item);
  call.allocate_all();
  call.release(partial);
}

void foreach_max(Call& call) {
  const std::vector<at::Tensor> list = call.tensors(0);
  call.allocate_all();
  call.temporary(chunk_results(list) * list[0].itemsize());
}

// Simulates the unscaling of gradients by GradScaler, whose kernel supports float16, float32 and
// float64 only.
void unscale(Call& call) {
  for (const at::Tensor& gradient : call.tensors(0)) {
    TORCH_CHECK_NOT_IMPLEMENTED(gradient.scalar_type() != at::kBFloat16,
                                "\"_amp_foreach_non_finite_check_and_unscale_cuda\"",
                                " not implemented for 'BFloat16'");
  }
}

const RuleTable kListRules{
    {"_foreach*", kUnknown, kOnLists},
    {"_fused*", kUnknown, kMixesDevices},
    {"_amp_foreach_non_finite_check_and_unscale_", unscale, kFindsFinite},
    {"_foreach_norm", foreach_norm},
    {"_foreach_max", foreach_max},
};

}  // namespace
}  // namespace plimsoll::simulated
