// Sorting, and operations that sort: medians, the largest elements, membership in a set.
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <vector>

#include "rules/cub.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// --- sort ----------------------------------------------------------------------------------------

// Takes the memory that sorting along a dimension needs in addition to the results.
void sort_inner(Call& call, const at::Tensor& self, std::int64_t dim) {
  if (self.dim() == 0 || self.numel() == 0) return;
  const std::size_t count = static_cast<std::size_t>(self.size(dim));
  const std::size_t numel = elements(self);
  const std::size_t key = self.itemsize();
  if (count <= 4096) return scratch(call, count * 8);  // sorts in place; takes an array of indices
  std::vector<std::size_t> kept;
  const bool in_order = self.is_non_overlapping_and_dense() && self.stride(dim) == 1;
  if (!in_order) {  // the kernel sorts a copy with this dimension last and copies the results back
    kept.push_back(call.temporary(numel * key));
    if (self.is_non_overlapping_and_dense() || dim != self.dim() - 1) {
      kept.push_back(call.temporary(numel * key));
      kept.push_back(call.temporary(numel * 8));
    }
  }
  const bool is_float = self.scalar_type() == at::kFloat;
  const std::size_t segments = numel / count;
  if (segments == 1 || count >= 1000000) {
    kept.push_back(call.temporary(count * 8));
    for (std::size_t i = 0; i < segments; ++i) {
      scratch(call, cub::radix_sort(count, key, 8, bits_of(self), is_float));
    }
  } else if (segments < 128) {  // the kernel sorts all elements together, then by segment
    kept.push_back(call.temporary(numel * 8));
    kept.push_back(call.temporary(numel * 8));
    const std::size_t keys = call.temporary(numel * key);
    scratch(call, cub::radix_sort(numel, key, 8, bits_of(self), is_float));
    call.release(keys);
    const std::size_t bits = std::max<std::size_t>(1, std::bit_width(segments - 1));
    scratch(call, cub::radix_sort(numel, 8, 0, bits, false));
  } else {
    kept.push_back(call.temporary(numel * 8));
    scratch(call, cub::blocks({numel * key, numel * 8}));
  }
  release_backwards(call, kept);
}

void sort(Call& call) {  // (self, dim, descending) or (self, stable, dim, descending)
  call.allocate_all();
  const at::Tensor self = call.tensor(0);
  const bool names_stable = !call.argument(1).isInt();
  const std::int64_t dim = call.argument(names_stable ? 2 : 1).toInt();
  sort_inner(call, self, dim < 0 ? dim + self.dim() : dim);
}

// Simulates the median over the whole tensor.
void median(Call& call) {
  const at::Tensor self = call.tensor(0);
  if (self.numel() == 0) return;
  const std::size_t sorted = call.temporary(bytes_of(self));
  const std::size_t indices = call.temporary(elements(self) * 8);
  sort_inner(call, meta_empty({self.numel()}, self.scalar_type()), 0);
  call.release(indices);
  const std::size_t is_nan = call.temporary(1);
  call.allocate_all();
  call.release(is_nan);
  call.release(sorted);
}

// --- topk ----------------------------------------------------------------------------------------

bool takes_many_blocks(std::size_t slices, std::size_t size) {
  struct Limit {
    std::size_t slices, size;
  };
  static constexpr Limit kLimits[] = {{20, 20000}, {40, 10000}, {80, 8000},
                                      {199, 5000}, {799, 3000}, {4000, 800}};
  for (const Limit& limit : kLimits) {
    if (slices <= limit.slices) return size >= limit.size;
  }
  return size >= 400;
}

void topk(Call& call) {  // (self, k, dim, largest, sorted)
  const at::Tensor self = call.tensor(0);
  call.allocate_all();
  if (self.dim() == 0 || self.numel() == 0) return;
  const std::int64_t dim = dimension_of(call, 2, self);
  const std::size_t size = static_cast<std::size_t>(self.size(dim));
  const std::size_t slices = elements(self) / size;
  copy_unless_contiguous(call, self);
  if (takes_many_blocks(slices, size)) {
    const std::size_t sms = static_cast<std::size_t>(call.properties().multiprocessors);
    constexpr std::size_t kThreads = 256;
    const std::size_t blocks_per_sm = 65536 / (40 * kThreads);
    const std::size_t items =
        std::clamp<std::size_t>(cub::tiles(elements(self), sms * blocks_per_sm * kThreads), 4, 64);
    const std::size_t blocks = slices * cub::tiles(size, items * kThreads);
    std::vector<std::size_t> kept;
    for (const std::size_t bytes : {slices * self.itemsize(), slices * 8, slices * 8, blocks * 512,
                                    slices * 1024, blocks * 4, blocks * 4}) {
      kept.push_back(call.temporary(bytes));
    }
    scratch(call, cub::scan_by_key(blocks, 4));
    scratch(call, cub::scan_by_key(blocks, 4));
    release_backwards(call, kept);
  }
  const std::int64_t k = call.argument(1).toInt();
  if (call.argument(4).toBool() && k > 4096) {  // the kernel sorts the result and copies it back
    const std::size_t count = elements(self) / size * static_cast<std::size_t>(k);
    const std::size_t indices = call.temporary(count * 8);
    const std::size_t values = call.temporary(count * self.itemsize());
    sort_inner(call, call.shape_of_result(0), dim);
    scratch(call, count * 8);
    call.release(values);
    call.release(indices);
  }
}

// --- search --------------------------------------------------------------------------------------

void searchsorted(Call& call) {
  call.allocate_all();
  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor input = call.tensor(i);
    if (input.defined() && !input.is_contiguous()) {
      call.temporary(bytes_of(input));
    }
  }
}

void isin(Call& call) {  // (elements, test_elements, assume_unique, invert)
  call.allocate_all();
  const at::Tensor items = call.tensor(0);
  const at::Tensor tests = call.tensor(1);
  if (!items.defined() || !tests.defined() || items.numel() == 0) return;
  const double limit = 10 * std::pow(static_cast<double>(items.numel()), 0.145);
  if (static_cast<double>(tests.numel()) < limit) {
    const std::size_t equal = call.temporary(elements(items) * elements(tests));
    scratch(call, elements(items));
    call.release(equal);
    return;
  }
  const bool is_unique = call.argument(2).toBool();
  const std::size_t all = call.run([items, tests, is_unique] {
    at::Tensor of_items = items.flatten();
    at::Tensor of_tests = tests.flatten();
    at::Tensor order;
    if (!is_unique) {
      std::tie(of_items, order) = at::_unique(items, false, true);
      of_tests = std::get<0>(at::_unique(tests, false));
    }
    return std::vector{at::cat({of_items, of_tests}), order};
  });
  call.then([items, is_unique, all](Call& call) {
    const at::Tensor joined = call.outcome(all);
    const std::size_t count = elements(joined);
    const std::size_t sorted = call.temporary(count * joined.itemsize());
    const std::size_t places = call.temporary(count * 8);
    sort_inner(call, joined, 0);
    const std::size_t mask = call.temporary(count);
    scratch(call, count - 1);
    const std::size_t restored = call.temporary(count);
    if (!is_unique) scratch(call, elements(items));
    for (const std::size_t done : {restored, mask, sorted, places, all}) call.release(done);
  });
}

const RuleTable kSortingRules{
    {"sort", sort, kLikeIterator},
    {"topk", topk},
    {"aten::median", median},
    {"aten::nanmedian", median},
    {"searchsorted", searchsorted},
    {"bucketize", searchsorted},
    {"isin", isin},
};

}  // namespace
}  // namespace plimsoll::simulated
