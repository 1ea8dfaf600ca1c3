// Reductions in which several thread blocks compute one output together. The blocks keep partial
// results and a semaphore for each output in memory.
//
// The launch shape follows setReduceConfig in aten/src/ATen/native/cuda/Reduce.cuh.
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtilsMulti.h>

#include <algorithm>
#include <bit>
#include <bitset>

#include "rules/reduction.h"

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 512;
constexpr int kLeastValuesPerThread = 16;
constexpr int kMostValuesPerThread = 256;

int last_power_of_2(std::int64_t value) {
  return value < 1 ? 1 : static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(value)));
}

std::int64_t div_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

struct Launch {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t step_input = 1;
  std::int64_t step_output = 1;
  int block_width = 1;
  int block_height = 1;
  int output_vector = 1;
  bool reduces_across_x = false;

  [[nodiscard]] std::int64_t values_per_thread() const { return div_up(inputs, step_input); }
  [[nodiscard]] std::int64_t grid() const { return div_up(outputs / output_vector, step_output); }

  void set_block(std::int64_t across, std::int64_t down) {
    const int most = kMostThreads / output_vector;
    const int width = across < most ? last_power_of_2(across) : most;
    const int height = down < most ? last_power_of_2(down) : most;
    block_width = std::min(width, kWarp);
    block_height = std::min(height, most / block_width);
    block_width = std::min(width, most / block_height);
  }
};

// Returns how many adjacent elements a thread loads in one instruction. Call this function only if
// adjacent elements belong to different outputs.
int output_vector(const at::TensorIterator& iterator, std::size_t element) {
  const int input = iterator.ntensors() - 1;
  int vector = 4;
  const auto shrink = [&](std::uint64_t value) {
    while (value % static_cast<std::uint64_t>(vector) != 0) vector /= 2;
  };
  shrink(reinterpret_cast<std::uint64_t>(iterator.data_ptr(input)) / element);
  const int reduced = iterator.num_reduce_dims();
  shrink(static_cast<std::uint64_t>(iterator.shape()[static_cast<std::size_t>(reduced)]));
  for (int i = 0; i < iterator.ndim(); ++i) {
    if (i != reduced) {
      shrink(static_cast<std::uint64_t>(iterator.strides(input)[static_cast<std::size_t>(i)]) /
             element);
    }
  }
  return vector;
}

void reduce_once(Call& call, const at::TensorIterator& iterator, const Accumulation& how,
                 std::size_t element) {
  Launch launch;
  launch.outputs = iterator.num_output_elements();
  launch.inputs = iterator.numel() / std::max<std::int64_t>(launch.outputs, 1);
  const int input = iterator.ntensors() - 1;
  bool reduces_fastest = true;
  std::int64_t fastest_stride = static_cast<std::int64_t>(element);
  std::int64_t across = 1;
  std::int64_t down = 1;
  if (iterator.ndim() > 0) {
    const auto strides = iterator.strides(input);
    const auto reduced = static_cast<std::size_t>(iterator.num_reduce_dims());
    reduces_fastest =
        iterator.num_reduce_dims() == iterator.ndim() || strides[0] < strides[reduced];
    across = reduces_fastest ? launch.inputs : launch.outputs;
    down = reduces_fastest ? launch.outputs : launch.inputs;
    fastest_stride = reduces_fastest ? strides[0] : strides[reduced];
  }
  if (fastest_stride == static_cast<std::int64_t>(element)) {
    if (reduces_fastest && across >= 128 && iterator.num_reduce_dims() == 1) {
      across /= how.input_vector;
    } else if (!reduces_fastest) {
      launch.output_vector = output_vector(iterator, element);
      across /= launch.output_vector;
    }
  }
  launch.set_block(across, down);
  if (iterator.ndim() == 0 || reduces_fastest) {
    launch.reduces_across_x = true;
    launch.step_input *= launch.block_width;
  } else {
    launch.step_output *= launch.block_width;
  }
  bool is_split_across_warps = false;
  if (launch.values_per_thread() >= std::min(launch.block_height * 16, kMostValuesPerThread)) {
    is_split_across_warps = true;
    launch.step_input *= launch.block_height;
  } else {
    launch.step_output *= launch.block_height;
  }
  const DeviceProperties& on = call.properties();
  const std::int64_t blocks_per_processor =
      on.max_threads_per_multiprocessor / (launch.block_width * launch.block_height);
  const std::int64_t target = on.multiprocessors * blocks_per_processor;
  const std::int64_t grid = launch.grid();
  const std::int64_t values = launch.values_per_thread();
  if (!is_split_across_warps || values < kMostValuesPerThread || grid > target) return;
  const std::int64_t blocks =
      std::max(std::min(div_up(target, grid), div_up(values, kLeastValuesPerThread)),
               div_up(values, kMostValuesPerThread));
  if (blocks <= 1) return;
  std::int64_t bytes = static_cast<std::int64_t>(how.bytes) * launch.outputs * blocks;
  if (!launch.reduces_across_x) bytes *= launch.block_width * launch.output_vector;
  const std::size_t partial = call.temporary(static_cast<std::size_t>(bytes));
  const std::size_t semaphores =
      call.temporary(sizeof(int) * static_cast<std::size_t>(launch.grid()));
  call.release(semaphores);
  call.release(partial);
}

std::size_t accumulated(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat: return 4;
    default: return c10::isIntegralType(type, true) ? 8 : c10::elementSize(type);
  }
}

// Returns the number of elements that the result spans in memory, gaps included.
std::size_t output_span(const at::TensorIterator& iterator) {
  std::int64_t bytes = iterator.element_size(0);
  for (int i = 0; i < iterator.ndim(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    bytes = std::max(bytes, iterator.shape()[place] * iterator.strides(0)[place]);
  }
  return static_cast<std::size_t>(bytes / iterator.element_size(0));
}

// Returns a tensor without memory that stands in for a tensor that is not allocated yet.
at::Tensor stand_in(const Call& call, const at::Tensor& shape, at::IntArrayRef sizes,
                    at::IntArrayRef strides) {
  const c10::Device device(c10::DeviceType::CUDA, call.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device));
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), shape.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, shape.storage_offset());
  return made;
}

}  // namespace

void reduce(Call& call, const at::Tensor& result, const at::Tensor& input,
            c10::OptionalIntArrayRef dimensions, const Accumulation& how) {
  if (input.numel() == 0 || !result.defined()) return;
  const auto mask = dimensions && !dimensions->empty()
                        ? at::dim_list_to_bitset(*dimensions, static_cast<std::size_t>(input.dim()))
                        : std::bitset<at::dim_bitset_size>().flip();
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t place = 0;
  const bool keeps = result.dim() == input.dim();
  for (std::int64_t i = 0; i < input.dim(); ++i) {
    const bool is_reduced = mask[static_cast<std::size_t>(i)];
    sizes.push_back(is_reduced ? 1 : input.size(i));
    strides.push_back(is_reduced ? 0 : result.stride(keeps ? i : place));
    if (!is_reduced) ++place;
  }
  auto iterator =
      at::TensorIteratorConfig()
          .set_check_mem_overlap(false)
          .add_owned_output(stand_in(call, result, sizes, strides))
          .add_owned_const_input(
              input.is_meta() ? stand_in(call, input, input.sizes(), input.strides()) : input)
          .resize_outputs(false)
          .is_reduction(true)
          .check_all_same_dtype(false)
          .build();
  if (iterator.numel() == 0) return;
  if (iterator.can_use_32bit_indexing()) {
    reduce_once(call, iterator, how, input.itemsize());
    return;
  }
  // If several kernels run one after the other, they accumulate in the result. If the result's type
  // is smaller than a partial result, they accumulate in a buffer instead (AccumulationBuffer of
  // Reduce.cuh).
  const bool keeps_apart = how.bytes > result.itemsize();
  const std::size_t between =
      keeps_apart ? call.temporary(output_span(iterator) * how.bytes) : std::size_t{0};
  for (const auto& part : iterator.with_32bit_indexing()) {
    reduce_once(call, part, how, input.itemsize());
  }
  if (keeps_apart) call.release(between);
}

void reduce_to_sum(Call& call, const at::Tensor& result, const at::Tensor& input,
                   c10::OptionalIntArrayRef dimensions) {
  reduce(call, result, input, dimensions, {accumulated(input.scalar_type()), 4});
}

void allocate_sum(Call& call, std::size_t result, const at::Tensor& input,
                  at::IntArrayRef dimensions) {
  reduce_to_sum(call, call.allocate(result), input, dimensions);
}

namespace {

c10::OptionalIntArrayRef dimensions_of(const Call& call, std::size_t index,
                                       std::vector<std::int64_t>& storage) {
  if (index >= call.argument_count()) return std::nullopt;
  const c10::IValue& value = call.argument(index);
  if (value.isIntList()) {
    storage = value.toIntVector();
  } else if (value.isInt()) {
    storage = {value.toInt()};
  }
  return storage.empty() ? c10::OptionalIntArrayRef() : c10::OptionalIntArrayRef(storage);
}

using Size = std::size_t (*)(at::ScalarType);

std::size_t own_size(at::ScalarType type) { return c10::elementSize(type); }
std::size_t pair_size(at::ScalarType) { return 16; }  // a value and its index
std::size_t welford_size(at::ScalarType type) { return type == at::kDouble ? 32 : 16; }
std::size_t one_byte(at::ScalarType) { return 1; }

template <Size size, int vector, int dimension>
void reduction(Call& call) {
  call.allocate_all();
  std::vector<std::int64_t> storage;
  const at::Tensor input = call.tensor(0);
  reduce(call, call.allocate(0), input, dimensions_of(call, dimension, storage),
         {size(input.scalar_type()), vector});
}

template <int dimension>
void sum_of(Call& call, const at::Tensor& result, const at::Tensor& input) {
  std::vector<std::int64_t> storage;
  reduce_to_sum(call, result, input, dimensions_of(call, dimension, storage));
}

// Simulates sum, nansum, mean and prod. If the input's type differs from the result's type, PyTorch
// first copies the input into a new tensor of the result's type. There is one exception: a float32
// result is computed directly from float16 or bfloat16 input.
template <int dimension>
void sum(Call& call) {
  const at::Tensor result = call.allocate(0);
  const at::Tensor input = call.tensor(0);
  const at::ScalarType type = result.scalar_type();
  const bool is_low = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  if (input.scalar_type() == type || (is_low && type == at::kFloat)) {
    return sum_of<dimension>(call, result, input);
  }
  const std::size_t converted = call.run([input, type] { return std::vector{input.to(type)}; });
  call.then([result, converted](Call& call) {
    sum_of<dimension>(call, result, call.outcome(converted));
  });
  call.release(converted);
}

constexpr int kNone = 99;
const RuleTable kReductionRules{
    {"aten::sum", sum<kNone>},
    {"aten::sum.dim_IntList", sum<1>},
    {"aten::sum.IntList_out", sum<1>},
    {"aten::mean", sum<kNone>},
    {"aten::mean.dim", sum<1>},
    {"aten::mean.out", sum<1>},
    {"aten::nansum", sum<1>},
    {"aten::prod", sum<kNone>},
    {"aten::prod.dim_int", sum<1>},
    {"aten::linalg_vector_norm", reduction<accumulated, 4, 2>},
    {"aten::norm.ScalarOpt_dim", reduction<accumulated, 4, 2>},
    {"aten::amax", reduction<own_size, 4, 1>},
    {"aten::amin", reduction<own_size, 4, 1>},
    {"aten::max", reduction<own_size, 4, kNone>},
    {"aten::min", reduction<own_size, 4, kNone>},
    {"aten::max.dim", reduction<pair_size, 4, 1>},
    {"aten::min.dim", reduction<pair_size, 4, 1>},
    {"aten::argmax", reduction<pair_size, 4, 1>},
    {"aten::argmin", reduction<pair_size, 4, 1>},
    {"aten::any", reduction<one_byte, 4, kNone>},
    {"aten::any.dim", reduction<one_byte, 4, 1>},
    {"aten::any.dims", reduction<one_byte, 4, 1>},
    {"aten::all", reduction<one_byte, 4, kNone>},
    {"aten::all.dim", reduction<one_byte, 4, 1>},
    {"aten::all.dims", reduction<one_byte, 4, 1>},
    {"aten::var.correction", reduction<welford_size, 2, 1>},
    {"aten::std.correction", reduction<welford_size, 2, 1>},
    {"aten::var_mean.correction", reduction<welford_size, 2, 1>},
    {"aten::std_mean.correction", reduction<welford_size, 2, 1>},
};

}  // namespace
}  // namespace plimsoll::simulated
