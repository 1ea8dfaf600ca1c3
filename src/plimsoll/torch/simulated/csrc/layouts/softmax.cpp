// Softmax of sparse COO tensors. Positions without an element count as minus infinity
// (aten/src/ATen/native/sparse/cuda/SoftMax.cu).
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_log_softmax.h>
#include <ATen/ops/_sparse_log_softmax_backward_data.h>
#include <ATen/ops/_sparse_softmax.h>
#include <ATen/ops/_sparse_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/WrapDimMinimal.h>

#include <limits>
#include <vector>

#include "layouts/coordinates.h"
#include "layouts/layouts.h"
#include "rules/cub.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

const char* name_of(bool is_log) {
  return is_log ? "aten::_sparse_log_softmax" : "aten::_sparse_softmax";
}

// Returns one number for each element. The number combines all coordinates of the element except
// the one in dimension `dim`; if `dim` is -1, no coordinate is left out. Elements with the same
// number belong to one softmax, called a pool.
Tensor pools_of(const LayoutKernel& kernel, const Tensor& sparse, std::int64_t dim) {
  (void)kernel.temporary(static_cast<std::size_t>(sparse.sparse_dim()) * 8);  // strides
  std::vector<std::int64_t> kept;
  for (std::int64_t d = 0; d < sparse.sparse_dim(); ++d) {
    if (d != dim) kept.push_back(d);
  }
  return at::sparse::flatten_indices_by_dims(sparse._indices(), sparse.sizes(), kept);
}

// The arrays that describe the pools: the elements sorted by pool, and each pool's size, beginning
// and largest element.
struct Pools {
  Tensor sorted, sizes, offsets, largest;
};

Pools find_pools(const LayoutKernel& kernel, const Tensor& sparse, const Tensor& values,
                 std::int64_t dim, bool wants_largest) {
  const std::int64_t count = sparse._nnz();
  const auto items = static_cast<std::size_t>(count);
  const at::TensorOptions index = sparse._indices().options();
  const Tensor offsets = pools_of(kernel, sparse, dim);
  Pools pools;
  pools.sorted = at::empty({count}, index);
  (void)kernel.temporary(cub::merge_sort(items, 8, 0));
  pools.sizes = at::empty({count}, index);
  // Thrust counts equal numbers here. plimsoll assumes that this takes as much memory as Thrust's
  // unique_by_key.
  (void)kernel.temporary(cub::unique_by_long_key(items));
  kernel.assume("plimsoll estimates the memory with which Thrust counts a sparse tensor's rows");
  kernel.launch(6 * bytes_of_all({offsets, pools.sorted}));
  kernel.wait();
  double kinds = 1;
  for (std::int64_t d = 0; d < sparse.sparse_dim(); ++d) {
    if (d != dim) kinds *= static_cast<double>(sparse.size(d));
  }
  const std::int64_t found = find_distinct(kernel, offsets, kinds);
  pools.sizes.resize_({found});
  pools.offsets = pools.sizes.clone();
  (void)kernel.temporary(cub::scan(static_cast<std::size_t>(found), at::kLong));
  if (wants_largest) {
    const std::int64_t each = values.numel() / count;
    pools.largest =
        at::full({found * each}, -std::numeric_limits<double>::infinity(), values.options());
  }
  return pools;
}

std::int64_t checked(const Tensor& input, std::int64_t dim) {
  return c10::maybe_wrap_dim(dim, input.dim());
}

Tensor softmax(const Tensor& self, std::int64_t given_dim, bool half_to_float, bool is_log) {
  TORCH_CHECK(!half_to_float, is_log ? "log_softmax" : "softmax",
              " with half to float conversion is not supported on CUDA");
  const std::int64_t dim = checked(self, given_dim);
  const LayoutKernel kernel(name_of(is_log), self);
  const Tensor input = self.coalesce();
  if (input.numel() == 0 || input._nnz() == 0) return input.clone();
  const Tensor indices = input._indices().clone(at::MemoryFormat::Contiguous);
  const Tensor values = input._values().contiguous();
  Tensor made = at::empty_like(values);
  const auto result = [&] {
    return at::_sparse_coo_tensor_unsafe(indices, made, input.sizes())._coalesced_(true);
  };
  if (dim >= input.sparse_dim()) {
    const std::int64_t within = dim - input.sparse_dim() + 1;
    made = is_log ? at::_log_softmax(values, within, false) : at::_softmax(values, within, false);
    return result();
  }
  const Pools pools = find_pools(kernel, input, values, dim, true);
  kernel.launch(3 * bytes_of_all({values}));
  compute(
      made, {indices, values}, 8 * static_cast<double>(values.numel()),
      [&](const std::vector<Tensor>& of) {
        const Tensor known =
            at::_sparse_coo_tensor_unsafe(of[0], of[1], input.sizes())._coalesced_(true);
        return (is_log ? at::_sparse_log_softmax(known, dim, false)
                       : at::_sparse_softmax(known, dim, false))
            ._values();
      },
      is_log ? Description() : Description::between(0, 1));
  return result();
}

Tensor softmax_backward(const Tensor& given_grad, const Tensor& given_output,
                        std::int64_t given_dim, const Tensor& input, bool is_log) {
  const std::int64_t dim = checked(input, given_dim);
  const LayoutKernel kernel(name_of(is_log), input);
  const Tensor grad = given_grad.coalesce();
  const Tensor output = given_output.coalesce();
  if (output.numel() == 0 || output._nnz() == 0) return output.clone();
  const Tensor grad_values = grad._values().contiguous();
  const Tensor values = output._values().contiguous();
  Tensor made = at::empty_like(values);
  made.zero_();
  const Tensor indices = output._indices().clone(at::MemoryFormat::Contiguous);
  const Tensor places = pools_of(kernel, output, -1);
  const Tensor grad_places = pools_of(kernel, grad, -1);
  const std::int64_t within = dim - output.sparse_dim() + 1;
  if (within > 0 && at::equal(places, grad_places)) {
    made = is_log
               ? at::_log_softmax_backward_data(grad_values, values, within, values.scalar_type())
               : at::_softmax_backward_data(grad_values, values, within, values.scalar_type());
    return at::_sparse_coo_tensor_unsafe(indices, made, output.sizes())._coalesced_(true);
  }
  Pools pools;
  Tensor bounds;
  if (within <= 0) {
    bounds = at::empty({output._nnz()}, indices.options());
    pools = find_pools(kernel, output, values, dim, false);
  } else {  // PyTorch compares the indices on the host
    kernel.wait();
  }
  kernel.launch(4 * bytes_of_all({values, grad_values}));
  compute(made, {grad._indices(), grad_values, indices, values},
          8 * static_cast<double>(values.numel()), [&](const std::vector<Tensor>& of) {
            const auto sparse = [&](std::size_t at) {
              return at::_sparse_coo_tensor_unsafe(of[at], of[at + 1], output.sizes())
                  ._coalesced_(true);
            };
            const Tensor known = sparse(2);
            return (is_log ? at::_sparse_log_softmax_backward_data(sparse(0), known, dim, known)
                           : at::_sparse_softmax_backward_data(sparse(0), known, dim, known))
                ._values();
          });
  return at::_sparse_coo_tensor_unsafe(indices, made, output.sizes())._coalesced_(true);
}

template <bool is_log>
Tensor forward(const Tensor& self, std::int64_t dim, bool half_to_float) {
  return softmax(self, dim, half_to_float, is_log);
}

template <bool is_log>
Tensor backward(const Tensor& grad, const Tensor& output, std::int64_t dim, const Tensor& input) {
  return softmax_backward(grad, output, dim, input, is_log);
}

}  // namespace

void add_softmax_kernels(WrittenOut& kernels) {
  kernels.add("_sparse_softmax", TORCH_FN(forward<false>));
  kernels.add("_sparse_log_softmax", TORCH_FN(forward<true>));
  kernels.add("_sparse_softmax_backward_data", TORCH_FN(backward<false>));
  kernels.add("_sparse_log_softmax_backward_data", TORCH_FN(backward<true>));
}

}  // namespace plimsoll::simulated
