// The time of operations whose kernels only move numbers, without multiplying matrices.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "device/memory.h"
#include "device/tensors.h"
#include "operation/call.h"
#include "timing/timing.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

enum Touches : std::uint8_t { kAll, kAsManyAsResults, kAsManyAsOthers, kByRowsOfFirst };

constexpr KernelTime kTimes[] = {
#include "kernel_times.inc"
};

// A copy of a long vector reaches the fraction `kReached` of the memory bandwidth. If all memory
// that a kernel touches fits into the cache, this rate is multiplied by `kFasterCopies`.
constexpr double kReached = .908;
constexpr double kFasterCopies = 1.75;

const KernelTime* find_time(const std::string& name) {
  static const auto* const times = [] {
    auto* const made = new std::unordered_map<std::string, const KernelTime*>;
    for (const KernelTime& row : kTimes) made->emplace(row.name, &row);
    return made;
  }();
  const auto found = times->find(name);
  return found == times->end() ? nullptr : found->second;
}

// Returns how many numbers a tensor has in memory. A dimension with stride 0 repeats the same
// numbers, which count once.
double numbers_of(const Tensor& tensor) {
  double numbers = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0) numbers *= static_cast<double>(tensor.size(i));
  }
  return tensor.numel() == 0 ? 0 : numbers;
}

double bytes_of_numbers(const Tensor& tensor) {
  return numbers_of(tensor) * static_cast<double>(tensor.itemsize());
}

// The work of a call that multiplies no matrices.
struct Moved {
  double bytes = 0;      // bytes read and written
  double footprint = 0;  // size of the memory that is read or written
  double numbers = 0;    // how many numbers the largest operand has
  double rows = 0;
};

void add_operand(Moved& moved, const Tensor& tensor, double times) {
  const double bytes = bytes_of_numbers(tensor);
  moved.bytes += times * bytes;
  moved.footprint += bytes;
  moved.numbers = std::max(moved.numbers, static_cast<double>(tensor.numel()));
}

double time_of(const KernelTime& row, const Moved& moved, const DeviceProperties& on) {
  const double slower = kH200FlopsPerNs / on.flops_per_ns;
  const double rate =
      on.bytes_per_ns * kReached * (moved.footprint < kCacheBytes ? kFasterCopies : 1);
  const double bytes_ns = static_cast<double>(row.moved_permille) * 1e-3 * moved.bytes / rate;
  const double numbers_ns = static_cast<double>(row.element_fs) * 1e-6 * moved.numbers * slower;
  const double rows_ns = static_cast<double>(row.row_ps) * 1e-3 * moved.rows * slower;
  return static_cast<double>(row.start_ns) + std::max(bytes_ns, numbers_ns) + rows_ns;
}

// How the order of a tensor's elements in memory compares with the order in another tensor.
enum class Layout : std::uint8_t { same, strided, transposed };

// Returns the dimension with the smallest stride, ignoring dimensions of size 1 or stride 0.
// Returns -1 if all dimensions are ignored.
std::int64_t fastest_dimension(const Tensor& tensor) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) <= 1 || tensor.stride(i) == 0) continue;
    if (best < 0 || tensor.stride(i) < tensor.stride(best)) best = i;
  }
  return best;
}

Layout layout_of(const Tensor& tensor, const Tensor& like) {
  if (tensor.numel() <= 1) return Layout::same;
  if (tensor.sizes() == like.sizes() && tensor.strides() == like.strides() &&
      like.is_non_overlapping_and_dense()) {
    return Layout::same;
  }
  if (tensor.dim() == like.dim() && tensor.is_contiguous() && like.is_contiguous() &&
      tensor.numel() == like.numel()) {
    return Layout::same;
  }
  const std::int64_t fastest = fastest_dimension(like);
  if (fastest < 0) return Layout::strided;
  const std::int64_t from_end = like.dim() - fastest;
  if (from_end > tensor.dim()) return Layout::strided;
  const std::int64_t own = tensor.dim() - from_end;
  const bool is_along = tensor.size(own) <= 1 || tensor.stride(own) <= 1;
  return is_along || fastest_dimension(tensor) < 0 ? Layout::strided : Layout::transposed;
}

const KernelTime& pointwise_time(Layout layout) {
  static const KernelTime* const times[] = {find_time("pointwise"), find_time("strided"),
                                            find_time("transposed")};
  return *times[static_cast<int>(layout)];
}

// Returns whether a reduction keeps the last dimension: then elements that are adjacent in memory
// belong to different results.
bool keeps_columns(const Call& call) {
  if (call.inputs().empty() || call.results().empty() || !call.results()[0].isTensor()) {
    return false;
  }
  const Tensor& from = call.inputs()[0];
  const Tensor& to = call.results()[0].toTensor();
  return to.defined() && from.dim() >= 2 && to.dim() >= 1 && to.numel() > 1 &&
         to.numel() < from.numel() && to.size(-1) == from.size(-1);
}

// Returns whether a reduction keeps only the last dimension.
bool is_over_columns(const Call& call) {
  return keeps_columns(call) &&
         call.results()[0].toTensor().numel() == call.results()[0].toTensor().size(-1);
}

Moved work_of(const Call& call, int touches) {
  Moved moved;
  double results = 0;
  for_new_results(call, [&](const Tensor& tensor) {
    add_operand(moved, tensor, 1);
    results += bytes_of_numbers(tensor);
    if (moved.rows == 0) moved.rows = static_cast<double>(tensor.numel());
  });
  if (touches == kAsManyAsResults) {
    moved.bytes = 2 * results;
    moved.footprint = 2 * results;
    return moved;
  }
  double longest = 0;
  double caches = 0;
  c10::SmallVector<const void*, 8> firsts;
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (touches == kAsManyAsOthers && i == 0) continue;
    const bool reads_too = call.info().is_written[i] && !call.info().has(kOverwrites);
    double numbers = 0;
    double length = 0;
    bool is_repeated = false;
    for_tensors(call.argument(i), [&](const Tensor& tensor) {
      if (!is_simulated(tensor)) return;
      // In x * x both operands are one tensor, which is read once.
      const void* const self = tensor.unsafeGetTensorImpl();
      if (length == 0) is_repeated = std::ranges::find(firsts, self) != firsts.end();
      if (length == 0) firsts.push_back(self);
      if (call.info().is_cache[i]) {
        caches += bytes_of_numbers(tensor);
        return;
      }
      if (!is_repeated) add_operand(moved, tensor, reads_too ? 2 : 1);
      numbers += static_cast<double>(tensor.numel());
      ++length;
    });
    if (!call.argument(i).isTensorList()) continue;
    moved.numbers = std::max(moved.numbers, numbers);
    longest = std::max(longest, length);
  }
  moved.bytes = Touched{moved.bytes, caches}.bytes();
  moved.footprint = Touched{moved.footprint, caches}.bytes();
  if (touches == kAsManyAsOthers) moved.bytes *= 2;
  if (longest > 0) moved.rows = longest;
  if (longest > 0 || call.inputs().empty()) return moved;
  // So far `moved.rows` is the number of results. This is right if the kernel reduces each row to
  // one number. If the result is as large as the operand, the operand's rows count instead.
  const Tensor& first = call.inputs()[0];
  const bool is_of_first = touches == kByRowsOfFirst;
  if (is_of_first) moved.numbers = static_cast<double>(first.numel());
  if (is_over_columns(call)) {
    moved.rows = moved.numbers / std::max(1.0, static_cast<double>(first.size(-1)));
  } else if (keeps_columns(call)) {
    moved.rows = 0;
  } else if ((is_of_first || moved.rows >= moved.numbers) && first.dim() > 0) {
    moved.rows = moved.numbers / std::max(1.0, static_cast<double>(first.size(-1)));
  }
  return moved;
}

Layout layout_of(const Call& call) {
  Tensor out;
  for (const c10::IValue& result : call.results()) {
    if (result.isTensor() && is_simulated(result.toTensor())) {
      out = result.toTensor();
      break;
    }
  }
  if (!out.defined()) return Layout::same;
  Layout worst = Layout::same;
  for (const Tensor& input : call.inputs()) {
    if (is_simulated(input)) worst = std::max(worst, layout_of(input, out));
  }
  return worst;
}

// Returns the time of a call that multiplies no matrices, from its row of the table.
double memory_ns(const Call& call, const KernelTime* row) {
  const bool is_pointwise = call.info().is_pointwise;
  if (is_pointwise) {
    const Moved moved = work_of(call, kAll);
    const KernelTime& plain = pointwise_time(layout_of(call));
    const double time = time_of(plain, moved, call.properties());
    return row == nullptr ? time : std::max(time, time_of(*row, moved, call.properties()));
  }
  const auto is_dense = [](const Tensor& tensor) { return tensor.is_contiguous(); };
  if (call.info().plain_name == "cat" && !std::ranges::all_of(call.inputs(), is_dense)) {
    return time_of(pointwise_time(Layout::transposed), work_of(call, kAll), call.properties());
  }
  static const KernelTime* const unknown = find_time("unknown");
  const KernelTime& used = row == nullptr ? *unknown : *row;
  return time_of(used, work_of(call, static_cast<int>(used.touches)), call.properties());
}

// Returns how long kernels wait for operands and results that lie in host memory. The bus carries
// reads and writes at the same time.
double bus_ns(const Call& call) {
  // Kernels reach this fraction of a copy's rate. The fraction comes from a step of gpt2_adamw
  // that has the optimizer's state in host memory (docs/tiers.md).
  constexpr double kOfCopies = .9;
  Runtime& state = runtime();
  const auto in_shared = [&](const Tensor& tensor) -> double {
    const Allocation* const allocation = allocation_of(tensor);
    if (allocation == nullptr || allocation->device != call.device()) return 0;
    return static_cast<double>(state.gpus->shared_bytes(
        state.device(call.device()).gpu, reinterpret_cast<std::uint64_t>(tensor.data_ptr()),
        tensor.nbytes()));
  };
  double read = 0;
  double written = 0;
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    for_tensors(call.argument(i), [&](const Tensor& tensor) {
      if (!is_simulated(tensor)) return;
      const double bytes = in_shared(tensor);
      read += bytes;
      if (call.info().is_written[i]) written += bytes;
    });
  }
  for_new_results(call, [&](const Tensor& tensor) { written += in_shared(tensor); });
  return std::max(read, written) / (kOfCopies * call.properties().copy_bytes_per_ns);
}

// Returns the time to make a tensor contiguous.
double contiguous_ns(const Tensor& from, const DeviceProperties& on) {
  Moved moved;
  add_operand(moved, from, 2);
  const bool is_along = from.dim() == 0 || from.stride(-1) <= 1 || fastest_dimension(from) < 0;
  return time_of(pointwise_time(is_along ? Layout::strided : Layout::transposed), moved, on);
}

// Returns the time of summing a tensor over all dimensions but the channels, as part of another
// operation. The model is fitted to the gradients of convolutions' biases; it does not depend on
// the tensor's layout.
double reduction_ns(const Tensor& tensor, const DeviceProperties& on) {
  constexpr double kStartNs = 4000;
  constexpr double kNumberNs = 3.3e-3;
  const double slower = kH200FlopsPerNs / on.flops_per_ns;
  const double numbers = static_cast<double>(tensor.numel());
  const double bytes = numbers * static_cast<double>(tensor.itemsize());
  return kStartNs + std::max(numbers * kNumberNs * slower, bytes / (on.bytes_per_ns * kReached));
}

}  // namespace

const KernelTime* kernel_time(const Call& call) {
  std::string name = call.info().plain_name;
  if (find_time(name) == nullptr && name.size() > 1 && name.ends_with('_')) name.pop_back();
  const KernelTime* found = find_time(name);
  if (found == nullptr && name.starts_with("_foreach_")) found = find_time("_foreach_");
  if (found == nullptr || call.inputs().empty()) return found;
  const Tensor& first = call.inputs()[0];
  const bool is_last = first.dim() >= 4 && !first.is_contiguous() &&
                       first.suggest_memory_format() != at::MemoryFormat::Contiguous;
  std::string variant = name;
  if (first.itemsize() == 2) variant += ":half";
  if (is_last) variant += ":last";
  if (is_over_columns(call)) variant = name + ":columns";
  constexpr std::int64_t kFewIndices = 3072;
  if (call.inputs().size() > 1 && call.inputs()[1].numel() <= kFewIndices) {
    if (const KernelTime* const few = find_time(name + ":few")) return few;
  }
  const KernelTime* const precise = find_time(variant);
  return precise == nullptr ? found : precise;
}

double kernel_ns(const Call& call, const KernelTime* row) {
  const DeviceProperties& on = call.properties();
  double multiplied = 0;
  for (const Multiplication& each : call.multiplications())
    multiplied += std::visit([&](const auto& work) { return multiplied_ns(work, on); }, each);
  double besides = 0;
  for (const Besides& each : call.besides()) {
    besides += each.kind == Besides::Kind::reduction ? reduction_ns(each.of, on)
                                                     : contiguous_ns(each.of, on);
  }
  return std::max((multiplied > 0 ? multiplied : memory_ns(call, row)) + besides, bus_ns(call));
}

double moving_ns(double bytes, const DeviceProperties& on) {
  Moved moved;
  moved.bytes = moved.footprint = bytes;
  return time_of(pointwise_time(Layout::same), moved, on);
}

double copy_ns(const Tensor& to, const Tensor& from, const DeviceProperties& on) {
  Moved moved;
  add_operand(moved, from, 1);
  add_operand(moved, to, 1);
  return time_of(pointwise_time(layout_of(from, to)), moved, on);
}

}  // namespace plimsoll::simulated
