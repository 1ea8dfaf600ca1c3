// Embeddings. The kernels that compute their gradients sort the indices, and then add up each row's
// gradients.
#include <ATen/Context.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <tuple>

#include "chips/torch_rules.h"
#include "rules/cub.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Sorted {
  bool counts = false;  // the kernel counts how often each index occurs
  bool is_bag = false;
};

// Takes the memory for the gradients of rows. The kernels sort the indices, add the gradients of at
// most ten equal indices at a time, and then add up these partial sums for each row.
void sorted_gradients(Call& call, const at::Tensor& grad, const at::Tensor& indices,
                      std::int64_t rows, Sorted options) {
  const std::int64_t count = indices.numel();
  const std::size_t size = indices.itemsize();
  const auto take = [&](std::int64_t items, std::size_t bytes) {
    return call.temporary(static_cast<std::size_t>(items) * bytes);
  };
  const std::size_t items = elements(indices);
  take(count, size);
  take(count, size);
  const std::size_t range = take(count, size);
  scratch(call, cub::radix_sort(items, size, size, size * 8, false));
  call.release(range);
  if (options.counts) {
    take(count, size);
    scratch(call, cub::scan_by_key(items, size));
    scratch(call, cub::scan_by_key(items, size));
  }
  call.allocate_all();
  take(count, size);
  take(1, 8);
  const std::size_t keys = take(count, size);
  scratch(call, cub::unique_by_key(items));
  call.release(keys);
  const std::int64_t segments = std::min(count, rows);
  take(segments, size);
  take(segments, size);
  scratch(call, cub::scan(static_cast<std::size_t>(segments), indices.scalar_type()));
  take(1, 8);
  const std::int64_t partials = count / 10 + segments;
  take(partials, size);
  const std::int64_t width = grad.size(-1);
  const std::size_t sum_size = std::max<std::size_t>(grad.itemsize(), 4);
  // If there are few rows, a kernel adds up the gradients with atomics and keeps no partial sums.
  const std::int64_t warps = ceil_div(width, 32) * 32;
  const std::int64_t grid = ceil_div(segments * warps, std::min<std::int64_t>(warps, 1024));
  if (!options.is_bag && grid < call.properties().multiprocessors * 4 && partials > grid * 4 &&
      torch_rules().adds_few_embedding_gradients_atomically() &&
      !at::globalContext().deterministicAlgorithms()) {
    take(partials, size);
    if (grad.itemsize() < 4) take(rows * width, 4);
  } else {
    take(partials * width, sum_size);
  }
}

// Simulates embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq).
void embedding_dense_backward(Call& call) {
  const at::Tensor grad = call.tensor(0);
  const at::Tensor indices = call.tensor(1);
  const bool counts = call.argument(4).toBool();
  copy_unless_contiguous(call, indices);
  copy_unless_contiguous(call, grad);
  if (indices.numel() <= 3072 && !counts) return call.allocate_all();
  sorted_gradients(call, grad, indices, call.argument(2).toInt(), {counts, false});
}

// Simulates _embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices,
// num_weights, scale, mode, ...).
void embedding_bag_backward(Call& call) {
  constexpr std::size_t rows = 5;
  const at::Tensor grad = call.tensor(0);
  copy_unless_contiguous(call, grad);
  constexpr std::int64_t kMax = 2;
  if (call.argument(rows + 2).toInt() == kMax || call.tensor(1).numel() == 0) {
    return call.allocate_all();
  }
  sorted_gradients(call, grad, call.tensor(1), call.argument(rows).toInt(),
                   {call.argument(rows + 1).toBool(), true});
}

// Simulates _embedding_bag. The results are output, offset2bag, bag_size and max_indices.
void embedding_bag(Call& call) {
  call.infer();
  for (const std::size_t result : {2, 1, 0, 3}) {
    if (result < call.info().results.size()) call.allocate(result);
  }
}

void embedding_renorm(Call& call) {  // (self, indices, max_norm, norm_type)
  const at::Tensor indices = call.tensor(1);
  copy_unless_contiguous(call, indices);
  const std::size_t sorted =
      call.run([indices] { return std::vector{std::get<0>(at::sort(indices))}; });
  const std::size_t distinct = call.temporary(bytes_of(indices));
  const std::size_t count = call.temporary(8);
  scratch(call, cub::unique(elements(indices), indices.scalar_type()));
  for (const std::size_t done : {count, distinct, sorted}) call.release(done);
}

const RuleTable kEmbeddingRules{
    {"embedding_dense_backward", embedding_dense_backward},
    {"_embedding_bag_dense_backward", embedding_bag_backward},
    {"_embedding_bag", embedding_bag},
    {"_embedding_bag_forward_only", embedding_bag},
    {"embedding_renorm_", embedding_renorm},
};

}  // namespace
}  // namespace plimsoll::simulated
