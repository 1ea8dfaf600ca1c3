#include "checks/overlap.h"

#include <ATen/MemoryOverlap.h>

namespace plimsoll::simulated {
namespace {

void check_operand(const OperationInfo& info, const at::Tensor& written, const at::Tensor& other) {
  if (!other.defined()) return;
  if (info.has(kNoOverlap)) at::assert_no_overlap(written, other);
  if (info.has(kNoPartialOverlap)) at::assert_no_partial_overlap(written, other);
}

}  // namespace

void check_overlap(const Call& call) {
  const OperationInfo& info = call.info();
  if (!info.has(kNoOwnOverlap) && !info.has(kNoPartialOverlap) && !info.has(kNoOverlap)) return;
  if (info.has(kOnLists)) return;
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    const at::Tensor written = info.is_written[i] ? call.tensor(i) : at::Tensor();
    if (!written.defined()) continue;
    if (info.has(kNoOwnOverlap)) at::assert_no_internal_overlap(written);
    for (std::size_t j = 0; j < call.argument_count(); ++j) {
      if (info.is_written[j]) continue;
      for (const at::Tensor& other : call.tensors(j)) check_operand(info, written, other);
    }
  }
}

}  // namespace plimsoll::simulated
