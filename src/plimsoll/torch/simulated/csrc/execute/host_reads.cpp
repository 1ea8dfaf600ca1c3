// Simulates how the host reads from a device: single values, and the result of aten::equal.
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/equal.h>

#include <cstdint>

#include "device/memory.h"
#include "device/runtime.h"
#include "execute/kernels.h"
#include "values/known.h"
#include "values/reading.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

c10::Scalar local_scalar_dense(const Tensor& self) {
  check_access(self);
  runtime().synchronize(self.device().index());
  return at::_local_scalar_dense(read_by_host(self, runtime().name("aten::_local_scalar_dense")));
}

bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Cannot compare two tensors on different devices. Got: ", self.device(), " and ",
              other.device());
  if (self.sizes() != other.sizes()) return false;
  check_access(self);
  check_access(other);
  runtime().synchronize(self.device().index());
  const bool are_sure = source_of(self) <= Source::random && source_of(other) <= Source::random;
  if (are_sure) {
    const Tensor one = read_values(self);
    const Tensor two = read_values(other);
    if (one.defined() && two.defined()) return at::equal(one, two);
  }
  const std::uint32_t name = runtime().name("aten::equal");
  // PyTorch asks like this whether one truth value is true (ATen/TensorSubclassLikeUtils.h).
  if (self.numel() == 1 && self.scalar_type() == at::kBool && other.scalar_type() == at::kBool) {
    return at::equal(read_by_host(self, name), read_by_host(other, name));
  }
  runtime().assume(name, "plimsoll assumes that tensors of equal shape are equal");
  return true;
}

// Returns whether plimsoll can read the tensor's values, and has computed them as a GPU would.
bool is_known(const Tensor& tensor) {
  return source_of(tensor) == Source::computed && can_be_read(tensor);
}

}  // namespace

void add_reading_kernels(WrittenOut& kernels) {
  kernels.add("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  kernels.add("equal", TORCH_FN(equal));
  define("is_known(Tensor tensor) -> bool", TORCH_FN(is_known));
}

}  // namespace plimsoll::simulated
