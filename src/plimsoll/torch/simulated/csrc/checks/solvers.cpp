// Checks of linear algebra: cuSOLVER's errors for matrices that contain infinity or NaN.
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "checks/checks.h"
#include "device/virtual.h"

namespace plimsoll::simulated {
namespace {

bool has_infinite(const at::Tensor& matrices) {
  const at::Tensor values = known_values(matrices);
  if (!values.defined()) return false;
  const WithContentsScope real;
  return !at::isfinite(values).all().item<bool>();
}

[[noreturn]] void refuse_to_converge(const char* name, const char* repeated, std::int64_t code) {
  C10_THROW_ERROR(LinAlgError,
                  c10::str(name,
                           ": The algorithm failed to converge because the input matrix is "
                           "ill-conditioned or has too many repeated ",
                           repeated, " values (error code: ", code, ")."));
}

void eigenvalues(const Call& call) {
  if (has_infinite(call.tensor(0))) refuse_to_converge("linalg.eigh", "eigen", 1);
}

// Checks an SVD. If the matrices are small, or if the program wants only the singular values,
// cuSOLVER returns NaN instead of an error (H100, PyTorch 2.11). Such a call is checked only if the
// program names the driver "gesvd".
void singular_values(const Call& call) {
  constexpr std::int64_t kSmall = 32;
  const at::Tensor matrices = call.tensor(0);
  const bool finds_vectors = call.argument(2).toBool();
  const c10::IValue& driver = call.argument(3);
  const bool is_large = std::max(matrices.size(-1), matrices.size(-2)) > kSmall;
  const bool is_named = driver.isString() && driver.toStringView() == "gesvd";
  if (!is_named && !(is_large && finds_vectors)) return;
  if (has_infinite(matrices)) {
    refuse_to_converge("linalg.svd", "singular", std::min(matrices.size(-1), matrices.size(-2)));
  }
}

// If an element is infinite or NaN, cuSOLVER returns an error status. Only this status shows the
// error; the results do not. This check only looks at the elements. It does not run LAPACK on the
// host, because LAPACK was seen to write outside its memory for such matrices.
void general_eigenvalues(const Call& call) {
  TORCH_CHECK(!has_infinite(call.tensor(0)),
              "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnXgeev`: the "
              "matrix has numbers that are not finite");
}

void cholesky(const Call& call) {
  const at::Tensor values = known_values(call.tensor(0));
  if (!values.defined() || values.numel() == 0) return;
  const WithContentsScope real;
  const at::Tensor info = std::get<1>(at::linalg_cholesky_ex(values)).reshape({-1});
  const auto* const each = info.const_data_ptr<int>();
  for (std::int64_t i = 0; i < info.numel(); ++i) {
    if (each[i] == 0) continue;
    const std::string where =
        info.numel() == 1 && values.dim() == 2 ? "" : c10::str("(Batch element ", i, "): ");
    C10_THROW_ERROR(LinAlgError,
                    c10::str("cholesky: ", where,
                             "The factorization could not be completed because the input is not "
                             "positive-definite (the leading minor of order ",
                             each[i], " is not positive-definite)."));
  }
}

const CheckTable kSolverChecks{
    {"cholesky", cholesky},
    {"linalg_eig", general_eigenvalues},
    {"_linalg_eigvals", general_eigenvalues},
    {"_linalg_eigh", eigenvalues},
    {"_linalg_svd", singular_values},
};

}  // namespace
}  // namespace plimsoll::simulated
