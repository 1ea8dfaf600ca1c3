// Factorizations and solvers of cuSOLVER and cuBLAS. cuSOLVER does not document the size of its
// workspaces. These rules are fitted to recordings (CUDA 13.0, compute capability 9.0), and are
// exact for most sizes.
#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

constexpr std::size_t kInfo = 4;     // bytes of the status that a routine returns for a matrix
constexpr std::size_t kPointer = 8;  // bytes of a pointer to a matrix of a batch

std::size_t size_at(const Tensor& tensor, std::int64_t dim) {
  return static_cast<std::size_t>(tensor.size(dim));
}

// A batch of matrices.
struct Matrices {
  explicit Matrices(const Tensor& tensor)
      : rows(size_at(tensor, -2)),
        columns(size_at(tensor, -1)),
        count(rows * columns == 0 ? 0 : elements(tensor) / (rows * columns)),
        // Bytes of an element. The routines count their workspaces in elements.
        item(tensor.itemsize()) {}
  [[nodiscard]] std::size_t bytes() const { return rows * columns * item; }
  [[nodiscard]] bool is_float() const { return item == 4; }
  std::size_t rows, columns, count, item;
};

// Takes two arrays of pointers, which cuBLAS's routines for batches need.
void take_pointers(Call& call, std::size_t count) {
  const std::size_t first = call.temporary(count * kPointer);
  scratch(call, count * kPointer);
  call.release(first);
}

// Takes and frees a workspace for each matrix, because PyTorch calls the cuSOLVER routine for one
// matrix after the other.
void take_each(Call& call, std::size_t count, std::size_t bytes) {
  for (std::size_t i = 0; i < count; ++i) scratch(call, bytes);
}

// --- Cholesky ------------------------------------------------------------------------------------

std::size_t cholesky_workspace(std::size_t rows) {
  const std::size_t tiles = (rows + 63) / 64;
  return 128 + std::max<std::size_t>(32, 16 * tiles * tiles);
}

void cholesky(Call& call) {
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count == 0) return;
  scratch(call, of.count == 1 ? cholesky_workspace(of.rows) : of.count * kPointer);
}

void cholesky_solve(Call& call) {  // (right, factor, upper)
  const Tensor factor = call.tensor(1);
  const bool is_single = Matrices(factor).count == 1;
  if (is_single) call.temporary(kInfo);
  call.allocate_all();
  call.temporary(bytes_of(factor));
}

void cholesky_inverse(Call& call) {
  call.allocate_all();
  const Tensor factor = call.tensor(0);
  const std::size_t copied = call.temporary(bytes_of(factor));
  if (Matrices(factor).count == 1) scratch(call, kInfo);
  call.release(copied);
}

// --- LU ------------------------------------------------------------------------------------------

std::size_t lu_workspace(std::size_t rows) {
  const std::size_t small = 16 * round_up(rows, rows <= 32 ? 32 : rows <= 64 ? 64 : 128);
  if (rows <= 512) return 256 + std::min<std::size_t>(small, 8192);
  return 256 + (rows <= 1024 ? 12288 : 24 * round_up(rows, 128));
}

void factorize(Call& call, const Matrices& of) {
  if (of.count == 1) {
    scratch(call, lu_workspace(std::min(of.rows, of.columns)));
  } else if (of.rows == of.columns && of.count * of.rows <= 1024) {
    scratch(call, of.count * kPointer);
  }
}

// Takes the memory of a triangular solve: pointers for cuBLAS's batched routine, if the matrices
// are many or small.
void solve_triangles(Call& call, const Matrices& of) {
  if (of.count > 8 || of.rows < 64) take_pointers(call, of.count);
}

// Takes the memory for solving with LU factors and pivots.
void solve_factorized(Call& call, const Matrices& of, std::size_t right_bytes) {
  if (of.count == 1 ? of.rows < 16 : of.rows <= 64) {
    take_pointers(call, of.count);
  } else if (of.count == 1 && of.rows <= 64) {
    scratch(call, kInfo);
  } else {  // a kernel permutes the rows first
    const std::size_t order = call.temporary(of.rows * 8);
    const std::size_t places = call.temporary(of.count * of.rows * 8);
    const std::size_t inverse = call.temporary(of.count * of.rows * 8);
    scratch(call, right_bytes);
    solve_triangles(call, of);
    for (const std::size_t done : {inverse, places, order}) call.release(done);
  }
}

void lu_factor(Call& call) {
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count != 0) factorize(call, of);
}

void solve(Call& call) {  // (A, B, left, check_errors) -> (result, LU, pivots, info)
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count == 0) return;
  factorize(call, of);
  solve_factorized(call, of, bytes_of(call.allocate(0)));
}

void inverse(Call& call) {
  call.allocate_all();
  const Tensor self = call.tensor(0);
  const Matrices of(self);
  if (of.count == 0) return;
  const std::size_t factors = call.temporary(bytes_of(self));
  const std::size_t pivots = call.temporary(of.count * of.rows * 4);
  factorize(call, of);
  solve_factorized(call, of, bytes_of(self));
  call.release(pivots);
  call.release(factors);
}

void lu_solve(Call& call) {  // (LU, pivots, B)
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count != 0) solve_factorized(call, of, bytes_of(call.tensor(2)));
}

// Simulates _linalg_slogdet and _linalg_det, which compute a determinant from the diagonal of LU.
// Their results are (sign, logabsdet, LU, pivots) and (determinant, LU, pivots).
void determinant(Call& call) {
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count == 0) return;
  const std::size_t info = call.temporary(of.count * kInfo);
  factorize(call, of);
  call.temporary(of.count * of.rows * 4);
  call.temporary(of.count * of.rows);
  call.temporary(of.count * 8);
  call.temporary(of.count * of.rows * 8);
  call.release(info);
}

void solve_triangular(Call& call) {
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count != 0) solve_triangles(call, of);
}

void ldl_factor(Call& call) {
  call.allocate_all();
  const Matrices of(call.tensor(0));
  const std::size_t least = of.is_float() ? 98432 : 106624;
  if (of.count != 0) scratch(call, std::max(least, 64 * of.item * (of.rows + 1)));
}

// --- eigenvalues ---------------------------------------------------------------------------------

struct Point {
  double rows, numbers;
};

// Returns the workspace of the divide-and-conquer method: four matrices, and a part that is
// interpolated between measured points.
std::size_t divide_and_conquer(const Matrices& of) {
  static constexpr Point kPoints[] = {{3, 67918},     {32, 89139},   {64, 110675},  {100, 132427},
                                      {256, 196691},  {512, 196691}, {600, 166419}, {1000, 160019},
                                      {1500, 223499}, {4096, 553187}};
  const auto rows = static_cast<double>(of.rows);
  const Point* next = std::find_if(std::begin(kPoints) + 1, std::end(kPoints) - 1,
                                   [&](const Point& point) { return rows <= point.rows; });
  const Point& last = *(next - 1);
  const double share = (rows - last.rows) / (next->rows - last.rows);
  const double numbers = last.numbers + share * (next->numbers - last.numbers);
  return static_cast<std::size_t>(std::max(0.0, numbers) + 4 * rows * rows) * of.item;
}

// Returns the workspace of Jacobi's method, which is used in single precision.
std::size_t jacobi(const Matrices& of) {
  const std::size_t besides = of.rows <= 128 ? 1000 : 528;
  return (of.rows * of.rows + 36 * of.rows + besides) * of.item;
}

void eigenvalues(Call& call) {  // (A, UPLO, compute_v) -> (values, vectors)
  const Tensor self = call.tensor(0);
  const Matrices of(self);
  if (call.argument(2).toBool()) {
    call.allocate(1);
    call.allocate(0);
  } else {
    call.allocate(0);
    call.temporary(bytes_of(self));
  }
  if (of.count == 0) return;
  const std::size_t info = call.temporary(of.count * kInfo);
  const bool is_real_float = self.scalar_type() == at::kFloat;
  if (of.count > 1 && of.rows <= 32) {
    scratch(call, of.count * divide_and_conquer(of));
  } else if (is_real_float && of.rows >= 32 && of.rows <= 512) {
    take_each(call, of.count, jacobi(of));
  } else {
    take_each(call, of.count, divide_and_conquer(of));
  }
  call.release(info);
}

// --- QR ------------------------------------------------------------------------------------------

std::size_t reflectors_workspace(std::size_t columns, std::size_t item) {
  const std::size_t numbers =
      std::max<std::size_t>(std::size_t{3} << 18, (std::size_t{1} << 19) + 1024 * columns);
  return numbers * item + 128;
}

std::size_t build_workspace(std::size_t rows, std::size_t columns, std::size_t reflectors,
                            std::size_t item) {
  const std::size_t block = std::min<std::size_t>(reflectors, 128);
  const std::size_t numbers = block * rows + 2 * block * columns + (128 - block) * block;
  return std::max<std::size_t>(33056, numbers + 16640) * item;
}

// Takes the memory of a QR factorization. For a batch of small matrices PyTorch calls a cuBLAS
// routine that needs arrays of pointers to the matrices.
void reflect(Call& call, const Matrices& of) {
  if (of.rows <= 256 && of.count >= std::max<std::size_t>(2, of.rows / 16)) {
    take_pointers(call, of.count);
    return;
  }
  const std::size_t info = call.temporary(kInfo);
  // cuSOLVER counts a matrix's elements in 32 bits. For a matrix with more than 2^31 - 1 of
  // them, it reports a meaningless workspace size (H100, PyTorch 2.11: 58,720,256 rows and 37
  // columns).
  constexpr std::size_t kMostNumbers = std::numeric_limits<std::int32_t>::max();
  constexpr std::size_t kNoSize = std::size_t{1} << 60;
  const bool is_countable = of.rows * of.columns <= kMostNumbers;
  take_each(call, of.count, is_countable ? reflectors_workspace(of.columns, of.item) : kNoSize);
  call.release(info);
}

void qr(Call& call) {  // (A, mode) -> (Q, R)
  const Tensor self = call.tensor(0);
  const Matrices of(self);
  const bool has_q = call.argument(1).toStringRef() != "r";
  const std::size_t least = std::min(of.rows, of.columns);
  call.allocate_all();
  if (of.count == 0) return;
  const std::size_t scales = call.temporary(of.count * least * of.item);
  if (!has_q && of.rows > of.columns) call.temporary(bytes_of(self));
  reflect(call, of);
  if (!has_q) return;
  const std::size_t info = call.temporary(kInfo);
  take_each(call, of.count,
            build_workspace(of.rows, size_at(call.allocate(0), -1), least, of.item));
  call.release(info);
  call.release(scales);
}

void reflectors(Call& call) {  // geqrf
  const Tensor self = call.tensor(0);
  const Matrices of(self);
  std::vector<std::int64_t> scales(self.sizes().begin(), self.sizes().end() - 1);
  scales.back() = std::min(self.size(-2), self.size(-1));
  call.set_shape(0, meta_contiguous(self.mT()).mT());
  call.set_shape(1, meta_empty(scales, self.scalar_type()));
  call.allocate_all();
  if (of.count != 0) reflect(call, of);
}

// Simulates linalg_lstsq.out(self, b, rcond, driver, solution, residuals, rank, singular_values).
// The kernel solves the problem by a QR factorization.
void least_squares(Call& call) {
  call.assume_memory("plimsoll estimates its workspace");
  const at::Tensor matrix = call.tensor(0);
  const at::Tensor right = call.tensor(1);
  const std::int64_t rows = matrix.size(-2);
  const std::int64_t columns = matrix.size(-1);
  const bool is_vector = right.dim() == matrix.dim() - 1;
  std::vector<std::int64_t> solution = right.sizes().vec();
  solution[solution.size() - (is_vector ? 1 : 2)] = columns;
  std::vector<std::int64_t> residuals{0};
  if (rows > columns) {
    residuals = right.sizes().vec();
    residuals.erase(residuals.end() - (is_vector ? 1 : 2));
  }
  call.set_shape(0, meta_empty(solution, matrix.scalar_type()));
  call.set_shape(1, meta_empty(residuals, matrix.scalar_type()));
  call.set_shape(2, meta_empty({0}, at::kLong));
  call.set_shape(3, meta_empty({0}, matrix.scalar_type()));
  call.allocate_all();
  const Matrices of(matrix);
  if (of.count == 0) return;
  const std::size_t info = call.temporary(of.count * kInfo);
  const std::size_t copied = call.temporary(bytes_of(matrix));
  const std::size_t scales = call.temporary(of.count * std::min(of.rows, of.columns) * of.item);
  reflect(call, of);
  // Estimated, not measured: the workspace for applying the reflections to the right side.
  if (of.count == 1) scratch(call, (3 * of.rows * of.columns / 2 + 300 * of.rows) * of.item);
  for (const std::size_t done : {scales, copied, info}) call.release(done);
}

void householder_product(Call& call) {  // (reflectors, scales)
  call.allocate_all();
  const Matrices of(call.tensor(0));
  if (of.count == 0) return;
  call.temporary(kInfo);
  take_each(call, of.count,
            build_workspace(of.rows, of.columns, size_at(call.tensor(1), -1), of.item));
}

// --- singular values -----------------------------------------------------------------------------

std::size_t singular_workspace(const Matrices& of, bool is_full) {
  const std::size_t long_side = std::max(of.rows, of.columns);
  const std::size_t side = std::min(of.rows, of.columns);
  if (of.count > 1 && long_side <= 32) return 992 * of.item;
  const std::size_t turned = of.columns > of.rows ? of.bytes() : 0;
  if (long_side == side) {
    return (side <= 32 ? 992 : 2 * side * side + 70 * round_up(side, 128) + 32) * of.item;
  }
  // cuSOLVER first reduces a long matrix to a triangle. The workspace and the scales of that step
  // are one allocation.
  const std::size_t reduced = reflectors_workspace(side, of.item) + round_up(side * of.item, 128);
  std::size_t whole = 2 * side * side + 70 * side + long_side * side;
  whole += long_side * (120 + 10000 / std::max<std::size_t>(side, 1));
  if (is_full) whole += long_side * side / 2 + 400 * long_side;
  if (of.count > 1) return reduced + turned;
  return std::max(reduced, whole * of.item) + turned;
}

void singular_values(Call& call) {  // (A, full_matrices, compute_uv, driver) -> (U, S, Vh)
  const Tensor self = call.tensor(0);
  const Matrices of(self);
  if (of.count == 0) return call.allocate_all();
  const bool has_vectors = call.argument(2).toBool();
  if (has_vectors) {
    call.allocate(0);
    call.allocate(2);
  }
  call.allocate(1);
  const std::size_t info = call.temporary(of.count * kInfo);
  const std::size_t copied = call.temporary(bytes_of(self));
  if (!has_vectors) {
    const bool is_batch = of.count > 1 && std::max(of.rows, of.columns) <= 32;
    const std::size_t least = std::min(of.rows, of.columns);
    const std::size_t at_once = is_batch ? of.count : 1;
    call.temporary(at_once * of.rows * least * of.item);
    call.temporary(at_once * of.columns * least * of.item);
  }
  if (!call.argument(3).isNone() && call.argument(3).toStringRef() != "gesvdj") {
    call.assume_memory("plimsoll counts the workspace of Jacobi's method");
  }
  scratch(call, singular_workspace(of, call.argument(1).toBool()));
  call.allocate_all();
  call.release(copied);
  call.release(info);
}

template <void (*rule)(Call&)>
void by_solver(Call& call) {
  call.use(Library::solver);
  rule(call);
}

const RuleTable kLinearAlgebraRules{
    {"linalg_cholesky_ex", by_solver<cholesky>},
    {"_cholesky_solve_helper", by_solver<cholesky_solve>},
    {"cholesky_inverse", by_solver<cholesky_inverse>},
    {"linalg_lu_factor_ex", by_solver<lu_factor>},
    {"_linalg_solve_ex", by_solver<solve>},
    {"linalg_inv_ex", by_solver<inverse>},
    {"linalg_lu_solve", lu_solve},
    {"_linalg_det", by_solver<determinant>},
    {"_linalg_slogdet", by_solver<determinant>},
    {"linalg_solve_triangular", solve_triangular},
    {"linalg_ldl_factor_ex", by_solver<ldl_factor>},
    {"_linalg_eigh", by_solver<eigenvalues>},
    {"linalg_qr", by_solver<qr>},
    {"geqrf", by_solver<reflectors>},
    {"aten::linalg_lstsq.out", by_solver<least_squares>},
    {"linalg_householder_product", by_solver<householder_product>},
    {"_linalg_svd", by_solver<singular_values>},
};

}  // namespace
}  // namespace plimsoll::simulated
