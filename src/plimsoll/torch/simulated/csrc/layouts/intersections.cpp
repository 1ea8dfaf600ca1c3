// Operations that match the elements of two sparse COO tensors by their coordinates: the
// elementwise product and masks (aten/src/ATen/native/sparse/SparseBinaryOpIntersectionCommon.h).
#include <ATen/ExpandUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "layouts/kernel.h"
#include "layouts/layouts.h"

// PyTorch calls the kernels of this file through these function pointers.
namespace at::native {
using product_fn = void (*)(Tensor&, const Tensor&, const Tensor&);
using mask_fn = void (*)(Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&);
using projection_fn = void (*)(Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                               bool);
DECLARE_DISPATCH(product_fn, mul_sparse_sparse_out_stub);
DECLARE_DISPATCH(mask_fn, sparse_mask_intersection_out_stub);
DECLARE_DISPATCH(projection_fn, sparse_mask_projection_out_stub);
TORCH_API Tensor& _mul_sparse_sparse_out(const Tensor& x, const Tensor& y, Tensor& result);
}  // namespace at::native

namespace plimsoll::simulated {
namespace {

using at::Tensor;
using Hash = std::optional<Tensor>;  // for each element: one number that combines its coordinates
// Computes the operation's result from host tensors.
using OnHost = std::function<Tensor(const Tensor&, const Tensor&)>;

// Describes a binary search in the elements of `searched`, for each element of `source`.
struct Search {
  Tensor source;
  Tensor searched;
  Hash source_hash;
  Hash searched_hash;
};

// Chooses which tensor to search in, as PyTorch does. If exactly one tensor is coalesced, PyTorch
// searches in that tensor, because it is already sorted. Otherwise PyTorch searches in the tensor
// with more elements.
Search choose(const Tensor& x, const Tensor& y, const Hash& x_hash) {
  // PyTorch divides the number of elements in the tensor to search in by the number of possible
  // coordinates. If the quotient exceeds this limit, PyTorch coalesces that tensor before the
  // search.
  constexpr std::int64_t kMostCopies = 50;
  const bool is_by_order = x.is_coalesced() != y.is_coalesced();
  const bool is_in_x = is_by_order ? x.is_coalesced() : x._nnz() >= y._nnz();
  Search search = is_in_x ? Search{y, x, {}, x_hash} : Search{x, y, x_hash, {}};
  std::int64_t places = 1;
  for (std::int64_t d = 0; d < x.sparse_dim(); ++d) places *= search.searched.size(d);
  if (!is_by_order && places > 0 && search.searched._nnz() / places > kMostCopies) {
    search.searched = search.searched.coalesce();
    search.searched_hash.reset();
  }
  return search;
}

void check_operands(const Tensor& x, const Tensor& y) {
  const bool fit = x.is_sparse() && y.is_sparse() && x.dim() == y.dim() &&
                   x.sparse_dim() == y.sparse_dim() &&
                   x.sizes().slice(0, static_cast<std::size_t>(x.sparse_dim())) ==
                       y.sizes().slice(0, static_cast<std::size_t>(y.sparse_dim()));
  TORCH_CHECK(fit, "sparse_binary_op_intersection_cuda(): expects sparse inputs with equal ",
              "dimensionality, number of sparse dimensions, and shape of sparse dimensions");
}

Tensor with_flag_of(const Tensor& sparse, const Tensor& indices, const Tensor& values) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sparse.sizes())
      ._coalesced_(sparse.is_coalesced());
}

void intersect(Tensor& result, const Tensor& x, const Tensor& y, const Hash& x_hash,
               const OnHost& on_host) {
  check_operands(x, y);
  const LayoutKernel kernel("aten::mul", x);
  const Search search = choose(x, y, x_hash);
  const Tensor& source = search.source;
  const Tensor& searched = search.searched;
  const std::int64_t count = source._nnz();
  const at::TensorOptions index = source._indices().options();
  const at::TensorOptions number = index.dtype(at::kLong);
  const Tensor places = at::arange(std::max(searched._nnz(), count), index);
  const Tensor hash = search.searched_hash ? search.searched_hash->contiguous()
                                           : at::empty({searched._nnz()}, number);
  std::tuple<Tensor, Tensor> sorted;
  if (!searched.is_coalesced()) sorted = at::sort(hash);
  const Tensor found = at::empty({2, count}, number);
  const Tensor unused = at::empty({1}, index);
  const Tensor source_hash =
      search.source_hash ? search.source_hash->contiguous() : at::empty({0}, number);
  kernel.launch(bytes_of_all({searched._indices(), source._indices(), hash, found}));

  const Tensor indices = source._indices().clone();
  const at::ScalarType type = at::result_type(source._values(), searched._values());
  const Tensor left = source._values().to(type);
  const Tensor right = searched._values().to(type);
  std::vector<std::int64_t> sizes = at::infer_size(left.sizes(), right.sizes().slice(1));
  sizes[0] = count;
  Tensor values = at::empty(sizes, left.options());
  kernel.launch(bytes_of_all({left, right, values}));
  const auto compute_values = [&](const std::vector<Tensor>& of) {
    return on_host(with_flag_of(x, of[0], of[1].to(type)), with_flag_of(y, of[2], of[3].to(type)))
        ._values();
  };
  compute(values, {x._indices(), x._values(), y._indices(), y._values()},
          static_cast<double>(values.numel() + searched._nnz()), compute_values);
  values = values.to(result.scalar_type());

  at::SparseTensorImpl* const impl = at::sparse::get_sparse_impl(result);
  impl->raw_resize_(source.sparse_dim(), source.dense_dim(), at::infer_size(x.sizes(), y.sizes()));
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_nnz_and_narrow(count);
  result._coalesced_(source.is_coalesced());
}

void multiply_elements(Tensor& result, const Tensor& x, const Tensor& y) {
  intersect(result, x, y, {}, [](const Tensor& left, const Tensor& right) {
    Tensor made = at::empty({0}, at::TensorOptions().dtype(left.scalar_type()).layout(at::kSparse));
    return at::native::_mul_sparse_sparse_out(left, right, made);
  });
}

void mask(Tensor& result, const Tensor& x, const Tensor& y, const Hash& x_hash) {
  intersect(result, x, y, x_hash,
            [](const Tensor& masked, const Tensor& by) { return masked.sparse_mask(by); });
}

void project(Tensor& result, const Tensor& x, const Tensor& y, const Hash& x_hash,
             bool accumulates) {
  intersect(result, x, y, x_hash, [accumulates](const Tensor& by, const Tensor& masked) {
    return masked._sparse_mask_projection(by, accumulates);
  });
}

}  // namespace

void add_intersections() {
  at::native::mul_sparse_sparse_out_stub.set_cuda_dispatch_ptr(&multiply_elements);
  at::native::sparse_mask_intersection_out_stub.set_cuda_dispatch_ptr(&mask);
  at::native::sparse_mask_projection_out_stub.set_cuda_dispatch_ptr(&project);
}

}  // namespace plimsoll::simulated
