// Matrix products: cuBLAS keeps a workspace for each handle and stream; from 2.15 on each product
// has its own.
#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/env.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rules.h"

namespace plimsoll::simulated {
namespace {

// --- matrix products -----------------------------------------------------------------------------

// cuBLAS handles are handed to threads from a pool, and each (handle, stream) keeps a workspace.
class HandlePool {
 public:
  int take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return made_++;
    const int handle = free_.back();
    free_.pop_back();
    return handle;
  }
  void give_back(int handle) {
    const std::lock_guard lock(mutex_);
    free_.push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::vector<int> free_;
  int made_ = 0;
};

HandlePool& handle_pool() {
  static auto* const pool = new HandlePool;
  return *pool;
}

struct ThreadHandles {
  std::map<c10::DeviceIndex, int> handles;
  int of(c10::DeviceIndex device) {
    const auto [place, is_new] = handles.try_emplace(device, 0);
    if (is_new) place->second = handle_pool().take();
    return place->second;
  }
  ~ThreadHandles() {
    for (const auto& [device, handle] : handles) handle_pool().give_back(handle);
  }
};
thread_local ThreadHandles thread_handles;

using WorkspaceKey = std::tuple<c10::DeviceIndex, int, c10::StreamId, bool>;

class Workspaces {
 public:
  bool has(const WorkspaceKey& key) {
    const std::lock_guard lock(mutex_);
    return all_.count(key) != 0;
  }
  void keep(const WorkspaceKey& key, at::DataPtr memory) {
    const std::lock_guard lock(mutex_);
    all_.emplace(key, std::move(memory));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    all_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<WorkspaceKey, at::DataPtr> all_;
};

Workspaces& workspaces() {
  static auto* const all = new Workspaces;
  return *all;
}

// CUBLAS_WORKSPACE_CONFIG holds pairs of KiB and counts, ":4096:2:16:8"; without any it is ignored.
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

std::size_t blas_workspace_bytes(const Call& call) {
  if (const auto configured = configured_workspace()) return *configured;
  const int major = call.properties().major;
  const bool is_large = major == 9 ||
                        (call.torch_version() >= 212 && (major == 10 || major == 12)) ||
                        (call.torch_version() >= 214 && major == 11);
  return is_large ? std::size_t{4096} * 8 * 1024 : std::size_t{8519680};
}

// CUBLASLT_WORKSPACE_SIZE, in KiB.
std::size_t lt_workspace_bytes() {
  std::size_t kib = 1024;
  if (const char* const text = std::getenv("CUBLASLT_WORKSPACE_SIZE")) {
    if (int configured = 0; std::sscanf(text, "%d", &configured) == 1 && configured >= 0) {
      kib = static_cast<std::size_t>(configured);
    }
  }
  return kib * 1024;
}

// Read, not recorded: aten/src/ATen/cuda/CublasHandlePool.cpp of 2.15 (pull request 194311).
bool keeps_workspaces(const Call& call) {
  if (call.torch_version() < 215) return true;
  static const bool is_asked_for = c10::utils::check_env("TORCH_CUBLAS_WORKSPACE_CACHE") == true;
  return is_asked_for;
}

// cuBLAS takes a matrix with one dense dimension as it is, and any other as a copy.
bool fits_blas(const at::Tensor& matrix) {
  const auto rows = matrix.size(-2);
  const auto columns = matrix.size(-1);
  const auto down = matrix.stride(-2);
  const auto across = matrix.stride(-1);
  if (matrix.dim() == 2 && matrix.is_non_overlapping_and_dense()) return true;
  return (down == 1 && across >= std::max<std::int64_t>(1, rows)) ||
         (across == 1 && down >= std::max<std::int64_t>(1, columns));
}

void copy_for_blas(Call& call, const at::Tensor& matrix) {
  if (matrix.dim() >= 2 && matrix.numel() != 0 && !fits_blas(matrix)) {
    call.temporary(elements(matrix) * matrix.itemsize());
  }
}

// A bias of one row is added within the product, by cublasLt.
bool adds_bias_in_product(const Call& call, const at::Tensor& bias, const at::Tensor& left,
                          const at::Tensor& right) {
  return bias.dim() == 1 && bias.is_contiguous() && left.dim() == 2 && right.dim() == 2 &&
         bias.size(0) == right.size(1) && call.argument(3).toScalar().equal(1) &&
         (call.argument_count() < 5 || call.argument(4).toScalar().equal(1)) && right.size(0) > 1 &&
         right.size(1) > 1;
}

// cuBLAS multiplies floating-point matrices of one type. PyTorch's shape functions leave this to
// the kernels.
void check_types(const Call& call, const at::Tensor& left, const at::Tensor& right) {
  const std::string& name = call.info().plain_name;
  const bool is_batched = name == "bmm" || name.rfind("baddbmm", 0) == 0;
  if (left.scalar_type() != right.scalar_type()) {
    TORCH_CHECK(!is_batched, "expected scalar type ", left.scalar_type(), " but found ",
                right.scalar_type());
    TORCH_CHECK(name == "mm", "mat1 and mat2 must have the same dtype, but got ",
                left.scalar_type(), " and ", right.scalar_type());
    TORCH_CHECK(false, "expected mat1 and mat2 to have the same dtype, but got: ", left.dtype(),
                " != ", right.dtype());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(left.scalar_type(), /*includeBool=*/true),
                              is_batched ? "\"baddbmm_cuda\"" : "\"addmm_cuda\"",
                              " not implemented for '", left.scalar_type(), "'");
}

// Everything before the product, of operands `first` and the one after it. False: it has no terms,
// so no library is asked.
[[nodiscard]] bool begin_product(Call& call, std::size_t first) {
  const at::Tensor left = call.tensor(first);
  const at::Tensor right = call.tensor(first + 1);
  check_types(call, left, right);
  if (call.argument_count() == 5 && call.info().plain_name.rfind("addmm", 0) == 0) {
    TORCH_CHECK(call.tensor(0).scalar_type() == right.scalar_type(),
                "self and mat2 must have the same dtype, but got ", call.tensor(0).scalar_type(),
                " and ", right.scalar_type());
  }
  call.allocate_all();
  copy_for_blas(call, left);
  copy_for_blas(call, right);
  const double flops =
      2.0 * static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
  call.note_work(flops, left.scalar_type(), at::globalContext().allowTF32CuBLAS());
  return left.numel() != 0 && right.numel() != 0;
}

template <std::size_t first>
void gemm(Call& call) {
  if (begin_product(call, first)) call.blas_workspace();
}

void addmm(Call& call) {
  if (!begin_product(call, 1)) return;
  if (adds_bias_in_product(call, call.tensor(0), call.tensor(1), call.tensor(2))) {
    call.lt_workspace();
  } else {
    call.blas_workspace();
  }
}

void addmm_activation(Call& call) {
  if (begin_product(call, 1)) call.lt_workspace();
}

void vector_product(Call& call) {
  const bool is_dot = call.info().plain_name.rfind("addmv", 0) != 0;
  const auto type = call.tensor(is_dot ? 0 : 1).scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(type, /*includeBool=*/true),
                              is_dot ? "\"dot\"" : "\"addmv_impl_cuda\"", " not implemented for '",
                              type, "'");
  call.allocate_all();
  call.blas_workspace();
}

// _grouped_mm(left, right, offsets, bias, out_dtype). Rows of the result are padded to 16 bytes.
// PyTorch's own shape function refuses what the fallback, one product a group, accepts.
void grouped_mm(Call& call) {
  const at::Tensor left = call.tensor(0);
  const at::Tensor right = call.tensor(1);
  const at::Tensor offsets = call.tensor(2);
  const auto type =
      call.argument(4).isNone() ? left.scalar_type() : call.argument(4).toScalarType();
  std::vector<std::int64_t> sizes;
  std::int64_t groups = left.size(0);
  if (left.dim() == 2) {
    groups = offsets.size(0);
    sizes = {left.size(0), right.size(-1)};
    if (right.dim() == 2) sizes.insert(sizes.begin(), groups);
  } else if (right.dim() == 2) {
    groups = offsets.size(0);
    sizes = {left.size(1), right.size(1)};
  } else {
    sizes = {left.size(0), left.size(1), right.size(-1)};
  }
  const auto step = static_cast<std::int64_t>(16 / c10::elementSize(type));
  const std::int64_t row = (sizes.back() + step - 1) / step * step;
  std::vector<std::int64_t> strides{row, 1};
  if (sizes.size() == 3) strides.insert(strides.begin(), sizes[1] * row);
  call.set_shape(0,
                 at::empty_strided(sizes, strides, left.options().dtype(type).device(at::kMeta)));
  call.allocate_all();
  const int major = call.properties().major;
  if (left.scalar_type() == at::kBFloat16 && (major == 9 || major == 10)) {
    call.temporary(60 * static_cast<std::size_t>(groups));
    constexpr std::size_t kCutlassWorkspace = 67584;  // as recorded
    call.temporary(kCutlassWorkspace);
    return;
  }
  if (offsets.defined()) call.synchronize();
  for (std::int64_t group = 0; group < groups; ++group) call.blas_workspace();
}

constexpr RuleRow kMatmulRules[] = {
    {"_grouped_mm", grouped_mm},
    {"mm", gemm<0>},
    {"bmm", gemm<0>},
    {"baddbmm", gemm<1>},
    {"baddbmm_", gemm<1>},
    {"addmm", addmm},
    {"addmm_", addmm},
    {"_addmm_activation", addmm_activation},
    {"addmv", vector_product},
    {"addmv_", vector_product},
    {"dot", vector_product},
    {"vdot", vector_product},
};

}  // namespace

void clear_blas_workspaces() { workspaces().clear(); }

void Call::take_workspace(std::size_t bytes, bool lt) {
  Runtime& state = runtime();
  const bool is_kept = keeps_workspaces(*this);
  const WorkspaceKey key{device_, thread_handles.of(device_), state.current_stream(device_), lt};
  if (is_kept && workspaces().has(key)) return;
  const OperationScope scope(info_.name, Role::workspace);
  const c10::DeviceIndex before = state.current_device();
  state.set_device(device_);
  at::DataPtr memory = take_memory(bytes);
  state.set_device(before);
  if (is_kept) workspaces().keep(key, std::move(memory));
}

void Call::blas_workspace() { take_workspace(blas_workspace_bytes(*this), false); }

void Call::lt_workspace() {
  const bool is_kept = keeps_workspaces(*this);
  if (is_kept) blas_workspace();  // its handle is cuBLAS's
  if (!is_kept || torch_version() < 212) take_workspace(lt_workspace_bytes(), true);
}

std::span<const RuleRow> matmul_rules() { return kMatmulRules; }

}  // namespace plimsoll::simulated
