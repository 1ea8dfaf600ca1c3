// Sparse tensors in COO layout, which store each element with its coordinates
// (aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, SparseCUDATensorMath.cu).
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_sum_backward.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "layouts/coordinates.h"

#include "device/virtual.h"
#include "layouts/cusparse.h"
#include "layouts/kernel.h"
#include "layouts/layouts.h"
#include "rules/cub.h"
#include "values/distinct.h"
#include "values/known.h"

// PyTorch's own functions that this file uses. They run unchanged. They call operations on
// strided tensors, which are simulated. They also call function pointers, which the files of this
// folder set.
namespace at::native {
using flatten_indices_fn = Tensor (*)(const Tensor&, IntArrayRef);
DECLARE_DISPATCH(flatten_indices_fn, flatten_indices_stub)
TORCH_API Tensor& _mul_sparse_sparse_out(const Tensor& x, const Tensor& y, Tensor& result);
TORCH_API Tensor& _mul_dense_sparse_out(const Tensor& dense, const Tensor& sparse, Tensor& result);
TORCH_API Tensor& _mul_sparse_sparse_zero_dim_out(const Tensor& zero_dim, const Tensor& other,
                                                  Tensor& result);
}  // namespace at::native

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// --- coalesce ------------------------------------------------------------------------------------

// Returns for each element one number that combines its coordinates (FlattenIndicesCommon.h).
Tensor flatten(const Tensor& indices, at::IntArrayRef sizes) {
  const std::int64_t dims = indices.size(0);
  const LayoutKernel kernel("aten::_coalesce", indices);
  Tensor flat = at::arange(indices.size(1), indices.options().dtype(at::kLong));
  kernel.launch(bytes_of_all({indices, flat}));
  const auto number = [&](const std::vector<Tensor>& of) {
    Tensor numbers = of[0][0].to(at::kLong);
    for (std::int64_t d = 1; d < dims; ++d) {
      numbers = numbers.mul(sizes[static_cast<std::size_t>(d)]).add(of[0][d]);
    }
    return numbers;
  };
  double kinds = 1;
  for (std::int64_t d = 0; d < dims; ++d) {
    kinds *= static_cast<double>(sizes[static_cast<std::size_t>(d)]);
  }
  const bool is_random = known_of(indices).description.is_random();
  compute(flat, {indices}, static_cast<double>(indices.numel()), number,
          is_random ? Description::even(0, kinds - 1) : Description::between(0, kinds - 1));
  return flat;
}

}  // namespace

std::int64_t find_distinct(const LayoutKernel& kernel, const Tensor& flat, double kinds) {
  const Source source = source_of(flat);
  if (source > Source::random) kernel.assume(kSizeOfUnknown);
  if (source == Source::random) kernel.assume(kSizeOfRandom);
  if (can_be_read(flat)) {
    const WithContentsScope real;
    if (const Tensor values = read_values(flat); values.defined()) {
      const Tensor distinct = std::get<0>(at::_unique(values, true));
      const Tensor first = flat.narrow(0, 0, distinct.numel());
      if (const Tensor to = writable_values(first, true); to.defined()) {
        to.copy_(distinct);
        note_values(first, std::min(source, Source::assumed));
      }
      return distinct.numel();
    }
  }
  Description description = known_of(flat).description;
  description.low = 0;
  description.high = kinds - 1;
  note_described(flat, Description::between(0, kinds - 1));
  return expected_distinct(description, flat.numel());
}

namespace {

Tensor coalesce(const Tensor& self) {
  const std::int64_t count = self._nnz();
  if (count < 2) return self.clone()._coalesced_(true);
  const LayoutKernel kernel("aten::_coalesce", self);
  const auto items = static_cast<std::size_t>(count);
  Tensor values = self._values();
  const std::int64_t dims = self.sparse_dim();
  const Tensor flat = at::sparse::flatten_indices(self._indices(), self.sizes(), true);
  const Tensor origins = at::empty({count}, self._indices().options());
  const Tensor offsets = at::empty({count}, self._indices().options());
  // Thrust sorts by comparison and then keeps only the first of equal elements.
  (void)kernel.temporary(cub::merge_sort(items, 8, 8));
  (void)kernel.temporary(cub::unique_by_long_key(items));
  kernel.launch(6 * bytes_of_all({flat, origins}));
  kernel.wait();
  double kinds = 1;
  for (std::int64_t d = 0; d < dims; ++d) kinds *= static_cast<double>(self.size(d));
  const std::int64_t found = find_distinct(kernel, flat, kinds);
  flat.resize_({1, found});
  std::vector<std::int64_t> sizes = values.sizes().vec();
  sizes[0] = found;
  const Tensor sums = at::empty(sizes, values.options());
  if (sums.numel() > 0) {
    values = values.contiguous();
    kernel.launch(bytes_of_all({values, sums}));
    const auto sum = [&self](const std::vector<Tensor>& of) {
      return at::_sparse_coo_tensor_unsafe(of[0], of[1], self.sizes()).coalesce()._values();
    };
    compute(sums, {self._indices(), values}, 4 * static_cast<double>(values.numel()), sum);
  }
  Tensor indices = flat;
  if (dims != 1) {
    indices = at::empty({dims, found}, origins.options());
    for (std::int64_t d = dims - 1; d >= 0; --d) {
      const Tensor row = indices.narrow(0, d, 1);
      row.copy_(flat);
      flat.divide_(self.size(d), "trunc");
      row.add_(flat, -self.size(d));
    }
  }
  return at::_sparse_coo_tensor_unsafe(indices, sums, self.sizes())._coalesced_(true);
}

// --- products ------------------------------------------------------------------------------------

// Returns the index of each row's first element, and at the end the number of all elements. The
// result holds 32-bit integers.
Tensor row_starts(const LayoutKernel& kernel, const Tensor& rows, std::int64_t count) {
  Tensor starts = at::empty({count + 1}, rows.options().dtype(at::kInt));
  const Tensor short_rows = at::empty({rows.size(0)}, rows.options().dtype(at::kInt));
  short_rows.copy_(rows);
  kernel.launch(bytes_of_all({starts, short_rows}));
  note_described(starts, Description::between(0, static_cast<double>(rows.size(0))));
  return starts;
}

void check_product(const Tensor& add, const Tensor& sparse, const Tensor& dense) {
  TORCH_CHECK(dense.is_cuda(), "Expected all tensors to be on the same device. addmm: expected ",
              "'mat2' to be CUDA tensor, but got ", dense.device(), " tensor");
  TORCH_CHECK(dense.dim() == 2, "addmm: 2D tensor expected, got ", dense.dim(), "D tensor");
  TORCH_CHECK(sparse.sparse_dim() == 2,
              "addmm: expected first two dims to be sparse (indices has size 2 at first dim), ",
              "but got ", sparse.sparse_dim(), " sparse dims");
  TORCH_CHECK(add.size(0) == sparse.size(0), "addmm: Argument #1 (t): Expected dim 0 size ",
              sparse.size(0), ", got ", add.size(0));
  TORCH_CHECK(add.size(1) == dense.size(1), "addmm: Argument #1 (t): Expected dim 1 size ",
              dense.size(1), ", got ", add.size(1));
  TORCH_CHECK(dense.size(0) == sparse.size(1), "addmm: Argument #3 (dense): Expected dim 0 size ",
              sparse.size(1), ", got ", dense.size(0));
}

bool is_column_major(const Tensor& matrix) {
  return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

Tensor& multiply(Tensor& result, const Tensor& add, const Tensor& matrix, const Tensor& dense,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  check_product(add, matrix, dense);
  const LayoutKernel kernel("aten::addmm", matrix);
  const std::int64_t rows = matrix.size(0);
  const std::int64_t columns = dense.size(1);
  result.resize_({rows, columns});
  const Tensor sparse = matrix.coalesce();
  const std::int64_t count = sparse._nnz();
  const Tensor indices = sparse._indices();
  const Tensor values = sparse._values();
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isReducedFloatingType(values.scalar_type()),
                              "\"addmm_sparse_cuda\" not implemented for '", values.scalar_type(),
                              "'");
  const Tensor starts = row_starts(kernel, indices.select(0, 0), rows);
  const Tensor places = at::empty({count}, indices.options().dtype(at::kInt));
  places.copy_(indices.select(0, 1));
  if (beta.equal(0)) {
    result.zero_();
  } else if (!add.is_same(result)) {
    result.copy_(add);
  }
  // cuSPARSE writes the result column by column.
  Tensor made = result;
  if (!is_column_major(result)) {
    made = result.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose_(0, 1);
  }
  if (count > 0) {
    const bool is_taken =
        is_column_major(dense) || (dense.stride(1) == 1 && dense.stride(0) != dense.size(1));
    const Tensor right = is_taken ? dense : dense.contiguous();
    const at::DataPtr buffer = kernel.temporary(cusparse::column_product_bytes(count, columns));
    kernel.launch(bytes_of_all({values, places, right, made}) +
                  static_cast<double>(count * columns) * static_cast<double>(values.itemsize()));
    const auto product = [&](const std::vector<Tensor>& of) {
      const Tensor left = at::_sparse_coo_tensor_unsafe(of[0], of[1], sparse.sizes());
      const Tensor whole = at::mm(left, of[2]).mul_(alpha);
      return beta.equal(0) ? whole : whole.add_(of[3], beta);
    };
    std::vector<Tensor> of{indices, values, dense};
    if (!beta.equal(0)) of.push_back(made);
    compute(made, of, 2 * static_cast<double>(count * columns), product);
  }
  if (!made.is_same(result)) result.copy_(made);
  return result;
}

Tensor& addmm_out(const Tensor& self, const Tensor& matrix, const Tensor& dense,
                  const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  const auto add = at::expand_size(self, {matrix.size(0), dense.size(1)}, "addmm_out");
  return multiply(out, *add, matrix, dense, beta, alpha);
}

Tensor addmm(const Tensor& self, const Tensor& matrix, const Tensor& dense, const at::Scalar& beta,
             const at::Scalar& alpha) {
  const auto add = at::expand_size(self, {matrix.size(0), dense.size(1)}, "addmm_out");
  Tensor result = at::empty({0}, self.options());
  return multiply(result, *add, matrix, dense, beta, alpha);
}

Tensor& addmm_(Tensor& self, const Tensor& matrix, const Tensor& dense, const at::Scalar& beta,
               const at::Scalar& alpha) {
  return multiply(self, self, matrix, dense, beta, alpha);
}

// --- sums and products of elements ---------------------------------------------------------------

Tensor& add_to_dense(Tensor& result, const Tensor& dense, const Tensor& sparse,
                     const at::Scalar& alpha) {
  TORCH_CHECK(dense.sizes().equals(sparse.sizes()),
              "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const LayoutKernel kernel("aten::add", sparse);
  const std::int64_t count = sparse._nnz();
  if (count == 0) return result.resize_as_(dense).copy_(dense);
  const at::ScalarType type = at::result_type(dense, sparse);
  Tensor sum = result;
  if (result.scalar_type() != type) sum = at::empty_like(dense, result.options().dtype(type));
  const Tensor start = dense.to(type);
  Tensor values = sparse._values().to(type);
  if (!sum.is_same(start)) sum.resize_as_(dense).copy_(start);
  if (values.numel() == 0) return result;
  if (sparse.is_coalesced()) {
    if (sparse.dense_dim() != 0) values = values.contiguous();
    kernel.launch(3 * bytes_of_all({values}));
    const auto add = [&](const std::vector<Tensor>& of) {
      return of[0].add(at::_sparse_coo_tensor_unsafe(of[1], of[2], sparse.sizes()), alpha);
    };
    compute(sum, {sum, sparse._indices(), values}, static_cast<double>(sum.numel()), add);
  } else {
    const Tensor flat = at::sparse::flatten_indices(sparse._indices(), sparse.sizes());
    std::int64_t rows = 1;
    for (std::int64_t d = 0; d < sparse.sparse_dim(); ++d) rows *= sum.size(d);
    const std::int64_t columns = rows == 0 ? 0 : sum.numel() / rows;
    sum.view({rows, columns}).index_add_(0, flat, values.reshape({count, columns}), alpha);
  }
  if (!sum.is_same(result)) result.copy_(sum);
  return result;
}

Tensor& add_out(const Tensor& self, const Tensor& other, const at::Scalar& alpha, Tensor& out) {
  if (!self.is_sparse()) return add_to_dense(out, self, other, alpha);
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes().equals(other.sizes()),
              "add: expected 'self' and 'other' to have same size, but ", self.sizes(),
              " != ", other.sizes());
  const LayoutKernel kernel("aten::add", self);
  if (other._nnz() == 0) return out.copy_(self);
  if (self._nnz() == 0) return out.copy_(other.mul(alpha));
  const at::ScalarType type = at::result_type(self, other);
  const Tensor left = self._values().to(type);
  Tensor right = other._values().to(type);
  if (!alpha.equal(1)) right = right.mul(alpha);
  // PyTorch only concatenates the elements; it does not merge those with equal coordinates.
  const Tensor indices = at::cat({self._indices(), other._indices()}, 1);
  const Tensor values = at::cat({left, right}, 0);
  if (out.scalar_type() != type) {
    const Tensor sum =
        at::_sparse_coo_tensor_unsafe(indices, values, other.sizes(), values.options()).coalesce();
    at::sparse::alias_into_sparse(out.resize_as_(other), sum._indices(),
                                  sum._values().to(out.scalar_type()));
  } else {
    at::sparse::alias_into_sparse(out.resize_as_(other), indices, values);
  }
  if (out._nnz() > out.numel()) {
    const Tensor sum = out.coalesce();
    at::sparse::alias_into_sparse(out, sum._indices(), sum._values());
  }
  return out;
}

Tensor& mul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  if (!other.is_sparse()) return at::native::_mul_dense_sparse_out(other, self, out);
  if (!self.is_sparse()) return at::native::_mul_dense_sparse_out(self, other, out);
  if (other.dim() == 0) return at::native::_mul_sparse_sparse_zero_dim_out(other, self, out);
  if (self.dim() == 0) return at::native::_mul_sparse_sparse_zero_dim_out(self, other, out);
  if (self.sizes().equals(other.sizes()) && (self._nnz() == 0 || other._nnz() == 0)) {
    return out.resize_as_(self).zero_();
  }
  return at::native::_mul_sparse_sparse_out(self, other, out);
}

// --- gradients of sums ---------------------------------------------------------------------------

// Tells which dimensions of a sparse COO tensor torch.sparse.sum sums over, and which it keeps.
struct SummedDims {
  std::vector<std::int64_t> kept;   // the sparse dimensions that are not summed
  std::vector<std::int64_t> dense;  // the summed dense dimensions, numbered as in values()
  bool any_sparse = false;
};

SummedDims summed_dims(const Tensor& input, at::IntArrayRef dims) {
  const auto are_summed = at::dim_list_to_bitset(dims, static_cast<std::size_t>(input.dim()));
  SummedDims found;
  for (std::int64_t d = 0; d < input.dim(); ++d) {
    const bool is_summed = are_summed[static_cast<std::size_t>(d)];
    if (d < input.sparse_dim()) {
      found.any_sparse = found.any_sparse || is_summed;
      if (!is_summed) found.kept.push_back(d);
    } else if (is_summed) {
      found.dense.push_back(d + 1 - input.sparse_dim());
    }
  }
  return found;
}

Tensor sum_backward(const Tensor& grad, const Tensor& summed, at::IntArrayRef dims) {
  const bool is_empty = (grad.is_sparse() && grad._nnz() == 0) || grad.numel() == 0;
  if (is_empty) return at::zeros_like(summed);
  const LayoutKernel kernel("aten::_sparse_sum_backward", summed);
  const Tensor input = summed.coalesce();
  const Tensor values = input._values();
  const SummedDims found = summed_dims(input, dims);
  const auto of_input = [&](const Tensor& gradients) {
    return at::_sparse_coo_tensor_unsafe(input._indices().clone(at::MemoryFormat::Contiguous),
                                         gradients, input.sizes());
  };
  if (found.kept.empty()) {
    TORCH_CHECK(!grad.is_sparse(), "_sparse_sum_backward_cuda: expected grad Tensor to be dense ",
                "since all sparse dims are summed");
    Tensor spread = grad;
    for (const std::int64_t d : found.dense) spread = spread.unsqueeze(d - 1);
    return of_input(spread.expand(values.sizes()).clone(at::MemoryFormat::Contiguous));
  }
  TORCH_CHECK(grad.is_sparse(),
              "_sparse_sum_backward_cuda: expected grad_ Tensor to be sparse, but got dense");
  const Tensor merged = grad.coalesce();
  Tensor spread = merged._values();
  if (!found.dense.empty()) {
    std::vector<std::int64_t> sizes = values.sizes().vec();
    sizes[0] = spread.size(0);
    for (const std::int64_t d : found.dense) spread = spread.unsqueeze(d);
    spread = spread.expand(sizes).clone(at::MemoryFormat::Contiguous);
  }
  if (!found.any_sparse) return of_input(spread);
  Tensor made = at::empty_like(values, spread.options(), at::MemoryFormat::Contiguous);
  std::vector<std::int64_t> all(static_cast<std::size_t>(merged.sparse_dim()));
  std::iota(all.begin(), all.end(), 0);
  const Tensor places = at::sparse::flatten_indices_by_dims(merged._indices(), merged.sizes(), all);
  const Tensor sought =
      at::sparse::flatten_indices_by_dims(input._indices(), input.sizes(), found.kept);
  const Tensor positions = at::empty_like(sought);
  kernel.launch(bytes_of_all({places, sought, positions, spread, made}));
  compute(made, {merged._indices(), merged._values(), input._indices(), values},
          static_cast<double>(made.numel()), [&](const std::vector<Tensor>& of) {
            const Tensor known_grad =
                at::_sparse_coo_tensor_unsafe(of[0], of[1], merged.sizes())._coalesced_(true);
            const Tensor known =
                at::_sparse_coo_tensor_unsafe(of[2], of[3], input.sizes())._coalesced_(true);
            return at::_sparse_sum_backward(known_grad, known, dims)._values();
          });
  return of_input(made);
}

// --- index_select (aten/src/ATen/native/cuda/Indexing.cu) ----------------------------------------

// Returns how many elements an index_select selects. `counts` has this number for each index. If it
// is unknown, takes `mean`, or `most` or zero for other assumptions about the data.
std::int64_t count_selected(const LayoutKernel& kernel, const Tensor& counts, double mean,
                            double most, bool is_random) {
  const Tensor sum = counts.sum();
  kernel.wait();
  const Source source = source_of(counts);
  if (source > Source::random) kernel.assume(is_random ? kSizeOfRandom : kSizeOfUnknown);
  if (source == Source::random) kernel.assume(kSizeOfRandom);
  if (source_of(sum) <= Source::random && can_be_read(sum)) {
    const WithContentsScope real;
    if (const Tensor value = read_values(sum); value.defined()) return value.item<std::int64_t>();
  }
  double drawn = 0;
  draw(Description::counted(mean, most, is_random), next_series(), 0, at::kLong, 1, &drawn);
  return static_cast<std::int64_t>(drawn);
}

Tensor index_select(const Tensor& self, std::int64_t dim, const Tensor& index) {
  TORCH_CHECK_INDEX(self.dim() != 0, "index_select() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK_INDEX(
      index.dim() == 1 && index.scalar_type() == at::kLong && index.layout() == at::kStrided,
      "index_select() argument index must be 1-D strided (non-sparse) long-tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor indices = self._indices();
  std::vector<std::int64_t> sizes = self.sizes().vec();
  const std::int64_t size = std::exchange(sizes[static_cast<std::size_t>(dim)], index.size(0));
  if (dim >= self.sparse_dim()) {
    const Tensor chosen = self._values().index_select(dim - self.sparse_dim() + 1, index);
    return at::_sparse_coo_tensor_unsafe(indices, chosen, sizes);
  }
  const auto select = [&](const Tensor& elements, const Tensor& places) {
    const Tensor of_elements = indices.index_select(1, elements);
    of_elements.select(0, dim).copy_(places);
    return at::_sparse_coo_tensor_unsafe(of_elements, self._values().index_select(0, elements),
                                         sizes);
  };
  if (index.size(0) == 0) return select(index, index);

  const LayoutKernel kernel("aten::index_select", self);
  const Tensor sought = at::empty_like(index, at::MemoryFormat::Contiguous);
  const Tensor row = indices.select(0, dim).contiguous();
  const Tensor places = at::arange(index.size(0), index.options());
  const Tensor elements = at::arange(self._nnz(), row.options());
  const bool is_sorted = dim == 0 && self.is_coalesced();
  const auto [sorted, order] = is_sorted ? std::tuple(row, elements) : row.sort();
  const Tensor counts = at::zeros_like(sought);
  const Tensor first = at::zeros_like(sought);
  kernel.launch(bytes_of_all({index, sought, sorted, counts, first}));
  const auto bound = [size](const Tensor& of, const Tensor& by, bool is_right) {
    return at::searchsorted(of, at::where(by.lt(0), by.add(size), by), false, is_right);
  };
  compute(counts, {sorted, index}, static_cast<double>(row.numel()), [&](const auto& of) {
    return bound(of[0], of[1], true).sub(bound(of[0], of[1], false));
  });
  compute(first, {sorted, index}, static_cast<double>(row.numel()),
          [&](const auto& of) { return bound(of[0], of[1], false); });
  const auto selected = static_cast<double>(self._nnz()) * static_cast<double>(index.size(0));
  const std::int64_t found = count_selected(
      kernel, counts, selected / static_cast<double>(std::max<std::int64_t>(size, 1)), selected,
      known_of(row).description.is_random());
  if (found == 0) {
    const Tensor none = at::empty({0}, index.options());
    return select(none, none);
  }
  const Tensor at_places = at::empty({found}, index.options());
  const Tensor chosen = at::empty_like(at_places);
  const Tensor offsets = counts.cumsum(0).sub_(counts);
  const Tensor unused = at::empty({1}, row.options());
  kernel.launch(bytes_of_all({counts, offsets, first, at_places, chosen}));
  const double last_place = static_cast<double>(index.size(0)) - 1;
  compute(
      at_places, {counts}, static_cast<double>(found),
      [&](const auto& of) { return at::repeat_interleave(of[0]); },
      Description::between(0, last_place));
  compute(
      chosen, {order, first, counts, offsets}, static_cast<double>(found),
      [&](const auto& of) {
        const Tensor start = of[1].sub(of[3]).repeat_interleave(of[2]);
        return of[0].index_select(0, start.add(at::arange(found, start.options())));
      },
      Description::between(0, static_cast<double>(self._nnz()) - 1));
  return select(chosen, at_places);
}

}  // namespace

void add_coordinate_kernels(WrittenOut& kernels) {
  at::native::flatten_indices_stub.set_cuda_dispatch_ptr(&flatten);
  kernels.add("_coalesce", TORCH_FN(coalesce));
  kernels.add("addmm", TORCH_FN(addmm));
  kernels.add("addmm.out", TORCH_FN(addmm_out));
  kernels.add("addmm_", TORCH_FN(addmm_));
  kernels.add("add.out", TORCH_FN(add_out));
  kernels.add("mul.out", TORCH_FN(mul_out));
  kernels.add("_sparse_sum_backward", TORCH_FN(sum_backward));
  kernels.add("index_select", TORCH_FN(index_select));
  add_intersections();
  add_softmax_kernels(kernels);
}

}  // namespace plimsoll::simulated
