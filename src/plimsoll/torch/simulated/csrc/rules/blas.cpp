#include "rules/blas.h"

#include <c10/util/env.h>

#include <atomic>
#include <cstdlib>
#include <optional>

#include "chips/chip.h"
#include "chips/torch_rules.h"

namespace plimsoll::simulated {
namespace {

// Returns the bytes that CUBLAS_WORKSPACE_CONFIG asks for. The variable lists pairs of KiB and
// count, for example ":4096:2:16:8". cuBLAS ignores a value without a pair.
std::optional<std::size_t> configured_workspace() {
  const char* const text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  if (text == nullptr) return std::nullopt;
  std::size_t total = 0;
  std::size_t kib = 0;
  std::size_t count = 0;
  const char* at = text;
  int used = 0;
  while (std::sscanf(at, ":%zu:%zu%n", &kib, &count, &used) == 2) {
    total += kib * 1024 * count;
    at += used;
  }
  if (at == text) return std::nullopt;
  return total;
}

// The workspace sizes that the program set: first cuBLAS's, then cublasLt's. A size is negative if
// the program did not set it.
std::atomic<std::int64_t> set_bytes[2] = {-1, -1};

std::size_t blas_workspace_bytes(c10::DeviceIndex device) {
  if (const std::int64_t set = set_bytes[0]; set >= 0) return static_cast<std::size_t>(set);
  if (const auto configured = configured_workspace()) return *configured;
  const std::int64_t large_since =
      chip_of(runtime().device(device).properties).large_workspace_since;
  const bool is_large = large_since != 0 && runtime().torch_version >= large_since;
  return is_large ? std::size_t{4096} * 8 * 1024 : std::size_t{8519680};
}

// Returns the bytes of cublasLt's workspace: the size that the program set, or else
// CUBLASLT_WORKSPACE_SIZE (in KiB), or else 1 MiB.
std::size_t lt_workspace_bytes() {
  if (const std::int64_t set = set_bytes[1]; set >= 0) return static_cast<std::size_t>(set);
  std::size_t kib = 1024;
  if (const char* const text = std::getenv("CUBLASLT_WORKSPACE_SIZE")) {
    if (int configured = 0; std::sscanf(text, "%d", &configured) == 1 && configured >= 0) {
      kib = static_cast<std::size_t>(configured);
    }
  }
  return kib * 1024;
}

bool keeps_workspaces() {
  if (!torch_rules().gives_blas_workspaces_back()) return true;
  static const bool is_asked_for = c10::utils::check_env("TORCH_CUBLAS_WORKSPACE_CACHE") == true;
  return is_asked_for;
}

}  // namespace

void take_blas_workspace(Call& call) {
  call.take_workspace({false, keeps_workspaces(), blas_workspace_bytes(call.device())});
}

void take_lt_workspace(Call& call) {
  const bool is_kept = keeps_workspaces();
  if (is_kept) take_blas_workspace(call);  // PyTorch also makes a cuBLAS handle and its workspace
  if (!is_kept || !torch_rules().shares_blas_workspaces()) {
    call.take_workspace({true, is_kept, lt_workspace_bytes()});
  }
}

void set_blas_workspace_bytes(bool lt, std::int64_t bytes) { set_bytes[lt ? 1 : 0] = bytes; }

std::size_t current_blas_workspace_bytes(bool lt) {
  return lt ? lt_workspace_bytes() : blas_workspace_bytes(runtime().current_device());
}

}  // namespace plimsoll::simulated
