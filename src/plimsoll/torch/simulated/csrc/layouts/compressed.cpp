// Sparse tensors in compressed layouts: CSR, CSC, BSR and BSC
// (aten/src/ATen/native/sparse/cuda/SparseBlas.cpp, SparseBlasImpl.cpp).
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/repeat_interleave.h>

#include <algorithm>
#include <vector>

#include "layouts/cusparse.h"
#include "layouts/kernel.h"
#include "layouts/layouts.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

bool has_dense_rows(const Tensor& matrix) {
  return matrix.stride(-1) == 1 && matrix.stride(-2) >= std::max<std::int64_t>(1, matrix.size(-1));
}

bool has_dense_columns(const Tensor& matrix) { return has_dense_rows(matrix.transpose(-2, -1)); }

Tensor dense_for_cusparse(const Tensor& matrix) {
  return has_dense_rows(matrix) || has_dense_columns(matrix)
             ? matrix
             : matrix.clone(at::MemoryFormat::Contiguous);
}

bool has_rows(const Tensor& sparse) {
  return sparse.layout() == at::kSparseCsr || sparse.layout() == at::kSparseBsr;
}

// Returns the strided tensors that a compressed tensor consists of.
std::vector<Tensor> parts_of(const Tensor& sparse) {
  if (has_rows(sparse)) return {sparse.crow_indices(), sparse.col_indices(), sparse.values()};
  return {sparse.ccol_indices(), sparse.row_indices(), sparse.values()};
}

// Computes result = beta * result + alpha * sparse @ dense.
void compute_product(const LayoutKernel& kernel, const Tensor& sparse, const Tensor& dense,
                     const Tensor& result, const at::Scalar& beta, const at::Scalar& alpha) {
  std::vector<Tensor> of = parts_of(sparse);
  const double columns = dense.dim() == 1 ? 1 : static_cast<double>(dense.size(-1));
  const double products = static_cast<double>(of[2].numel()) * columns;
  kernel.launch(bytes_of_all({of[1], of[2], dense, result}) +
                products * static_cast<double>(dense.itemsize()));
  of.push_back(dense);
  if (!beta.equal(0)) of.push_back(result);
  compute(result, of, 2 * products, [&](const std::vector<Tensor>& values) {
    const Tensor left = at::_sparse_compressed_tensor_unsafe(
        values[0], values[1], values[2], sparse.sizes(),
        at::TensorOptions().dtype(sparse.scalar_type()).layout(sparse.layout()));
    const Tensor whole = left.to_sparse().matmul(values[3]).mul_(alpha);
    return beta.equal(0) ? whole : whole.add_(values[4], beta);
  });
}

void multiply_rows(const LayoutKernel& kernel, const Tensor& sparse, const Tensor& dense,
                   const at::Scalar& beta, const at::Scalar& alpha, const Tensor& result) {
  const Tensor made = dense_for_cusparse(result);
  const Tensor right = dense_for_cusparse(dense);
  const at::DataPtr buffer = kernel.temporary(
      cusparse::product_bytes(sparse._nnz(), dense.size(1), sparse.col_indices().itemsize()));
  compute_product(kernel, sparse, right, made, beta, alpha);
  if (!made.is_same(result)) result.copy_(made);
}

// Multiplies a block-sparse matrix by a dense matrix. cuSPARSE writes the result column by column.
// It reads a dense matrix that is stored by rows or by columns; any other dense matrix is copied
// first.
void multiply_blocks(const LayoutKernel& kernel, const Tensor& sparse, const Tensor& dense,
                     const at::Scalar& beta, const at::Scalar& alpha, const Tensor& result) {
  const auto in_columns = [](const Tensor& matrix) {
    return has_dense_columns(matrix) || has_dense_rows(matrix)
               ? matrix
               : matrix.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose_(0, 1);
  };
  const Tensor made =
      has_dense_columns(result)
          ? result
          : result.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose_(0, 1);
  compute_product(kernel, sparse, in_columns(dense), made, beta, alpha);
  if (!made.is_same(result)) result.copy_(made);
}

[[noreturn]] void refuse_layouts(const Tensor& left, const Tensor& right) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "plimsoll cannot simulate the operation aten::addmm on the ",
                              "layouts ", left.layout(), " and ", right.layout());
}

void multiply_compressed(const LayoutKernel& kernel, const Tensor& left, const Tensor& right,
                         const at::Scalar& beta, const at::Scalar& alpha, const Tensor& result) {
  if (result.layout() != at::kStrided) refuse_layouts(left, right);
  if (right.layout() == at::kStrided) {
    if (left.layout() == at::kSparseCsr) {
      multiply_rows(kernel, left, right, beta, alpha, result);
    } else if (left.layout() == at::kSparseCsc) {
      multiply_rows(kernel, left.to_sparse_csr(), right, beta, alpha, result);
    } else if (left.layout() == at::kSparseBsr) {
      multiply_blocks(kernel, left, right, beta, alpha, result);
    } else {
      refuse_layouts(left, right);
    }
    return;
  }
  if (left.layout() != at::kStrided) refuse_layouts(left, right);
  // Computes the transposed product, where the sparse operand is on the left.
  const Tensor sparse = right.transpose(-2, -1);
  const Tensor dense = left.transpose(-2, -1);
  multiply_compressed(kernel, sparse, dense, beta, alpha, result.transpose(-2, -1));
}

Tensor& compressed_addmm_out(const Tensor& self, const Tensor& left, const Tensor& right,
                             const at::Scalar& beta, const at::Scalar& alpha, Tensor& result) {
  TORCH_CHECK(left.dim() == 2 && right.dim() == 2, "tensors must be 2-D");
  TORCH_CHECK(left.size(1) == right.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              left.size(0), "x", left.size(1), " and ", right.size(0), "x", right.size(1), ")");
  const LayoutKernel kernel("aten::addmm", left.is_cuda() ? left : right);
  if (!result.is_same(self)) {
    if (result.layout() != at::kStrided) refuse_layouts(left, right);
    const auto add = at::expand_size(self, {left.size(0), right.size(1)}, "addmm");
    result.resize_(add->sizes());
    result.copy_(*add);
  }
  if (result.numel() == 0) return result;
  const auto is_zero = [](const Tensor& matrix) {
    return matrix.layout() != at::kStrided && matrix._nnz() == 0;
  };
  if (is_zero(left) || is_zero(right)) return beta.equal(0) ? result.zero_() : result.mul_(beta);
  multiply_compressed(kernel, left, right, beta, alpha, result);
  return result;
}

Tensor& compressed_addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector,
                             const at::Scalar& beta, const at::Scalar& alpha, Tensor& result) {
  TORCH_CHECK(matrix.dim() == 2, "addmv: Expected mat to be 2-D");
  TORCH_CHECK(vector.dim() == 1, "addmv: Expected vec to be 1-D");
  if (matrix.layout() != at::kSparseCsr) refuse_layouts(matrix, vector);
  const LayoutKernel kernel("aten::addmv", matrix);
  if (!result.is_same(self)) {
    const auto add = at::expand_size(self, {matrix.size(0)});
    result.resize_(add->sizes());
    if (!beta.equal(0)) result.copy_(*add);
  }
  if (matrix._nnz() == 0) return beta.equal(0) ? result.zero_() : result.mul_(beta);
  const at::DataPtr buffer =
      kernel.temporary(cusparse::product_bytes(matrix._nnz(), 1, matrix.col_indices().itemsize()));
  compute_product(kernel, matrix, vector.contiguous(), result, beta, alpha);
  return result;
}

// Returns beta * self + alpha * left @ right. `self` is sparse, and `left` and `right` are dense.
// The product is computed only at the positions at which `self` has an element.
Tensor sampled_addmm(const Tensor& self, const Tensor& left, const Tensor& right,
                     const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(self.layout() == at::kSparseCsr, "Expected self to be a sparse CSR tensor");
  TORCH_CHECK(left.dim() == self.dim() && right.dim() == self.dim() &&
                  left.size(-1) == right.size(-2) && left.size(-2) == self.size(-2) &&
                  right.size(-1) == self.size(-1),
              "sampled_addmm: shapes of the matrices do not fit each other");
  const LayoutKernel kernel("aten::sparse_sampled_addmm", self);
  Tensor result = at::empty({0, 0}, self.options());
  result.resize_as_sparse_(self);
  result.copy_(self);
  const at::DataPtr buffer = kernel.temporary(1);
  const double products = static_cast<double>(self._nnz() * left.size(-1));
  kernel.launch(bytes_of_all({self.values(), self.col_indices()}) +
                2 * products * static_cast<double>(left.itemsize()));
  const std::vector<Tensor> of{self.crow_indices(), self.col_indices(), self.values(), left, right};
  compute(result.values(), of, 2 * products, [&](const std::vector<Tensor>& values) {
    const Tensor lengths = values[0].slice(0, 1).sub(values[0].slice(0, 0, -1));
    const Tensor rows = at::repeat_interleave(lengths);
    const Tensor columns = values[4].transpose(0, 1).index_select(0, values[1]);
    const Tensor found = values[3].index_select(0, rows).mul(columns).sum(1).mul_(alpha);
    return beta.equal(0) ? found : found.add_(values[2], beta);
  });
  return result;
}

}  // namespace

void add_compressed_kernels(WrittenOut& kernels) {
  kernels.add("addmm.out", TORCH_FN(compressed_addmm_out));
  kernels.add("sparse_sampled_addmm", TORCH_FN(sampled_addmm));
  kernels.add("addmv.out", TORCH_FN(compressed_addmv_out));
}

}  // namespace plimsoll::simulated
