// Operations that find distinct elements, count values or repeat elements. The sizes of their
// results depend on the values in the input tensors.
#include <ATen/ops/_unique.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/unique_dim.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "rules/cub.h"
#include "rules/rules.h"
#include "values/distinct.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

// Returns the values of `tensor`, or an undefined tensor if they cannot be read. The size of a
// result depends on these values. So plimsoll notes an assumption if a GPU may compute other
// values.
at::Tensor deciding_values(Call& call, const at::Tensor& tensor) {
  const Source source = source_of(tensor);
  if (source > Source::random) call.assume(kSizeOfUnknown);
  if (source == Source::random) call.assume(kSizeOfRandom);
  return can_be_read(tensor) ? read_values(tensor) : at::Tensor();
}

// Returns the shape of a 1-D result with `length` elements. The result's memory has room for
// `capacity` elements.
at::Tensor meta_cut(std::int64_t capacity, std::int64_t length, at::ScalarType type) {
  at::Tensor made = meta_empty({capacity}, type);
  made.unsafeGetTensorImpl()->set_sizes_contiguous({length});
  return made;
}

// Runs min and max over a tensor: the first step of some kernels.
void find_bounds(Call& call, const at::Tensor& tensor) {
  call.then([tensor](Call&) {
    (void)at::min(tensor);
    (void)at::max(tensor);
  });
}

// --- unique --------------------------------------------------------------------------------------

// Takes the memory for finding the distinct elements of a flattened tensor. If
// `consecutive` is true, the kernel compares only adjacent elements. Otherwise it sorts the
// elements first. The tensors of distinct elements and of counts are allocated with room for all
// elements. When PyTorch cuts these tensors to their final length, they keep that memory.
void unique_flat(Call& call, bool consecutive, bool inverse, bool counts) {
  const at::Tensor self = call.tensor(0);
  const at::ScalarType type = self.scalar_type();
  const std::int64_t numel = self.numel();
  const std::size_t items = elements(self);
  std::int64_t found = numel;
  if (const at::Tensor values = deciding_values(call, self); values.defined()) {
    found = consecutive ? std::get<0>(at::unique_consecutive(values)).numel()
                        : std::get<0>(at::_unique(values)).numel();
  } else {
    found = expected_distinct(known_of(self).description, numel);
  }
  call.set_shape(0, meta_cut(numel, found, type));
  call.set_shape(1, inverse ? meta_empty(self.sizes(), at::kLong) : meta_empty({0}, at::kLong));
  if (call.info().results.size() > 2) {
    call.set_shape(2, counts ? meta_cut(numel, found, at::kLong) : meta_empty({0}, at::kLong));
  }
  if (numel == 0) return;
  std::vector<std::size_t> kept;
  if (!self.is_contiguous()) kept.push_back(call.temporary(items * self.itemsize()));
  const bool is_float = type == at::kFloat;
  if (!consecutive) {
    kept.push_back(call.temporary(items * self.itemsize()));
    if (inverse) {
      const std::size_t range = call.temporary(items * 8);
      kept.push_back(call.temporary(items * 8));
      scratch(call, cub::radix_sort(items, self.itemsize(), 8, bits_of(self), is_float));
      call.release(range);
    } else {
      scratch(call, cub::radix_sort(items, self.itemsize(), 0, bits_of(self), is_float));
    }
  }
  if (inverse) {
    call.allocate(1);
    const std::size_t places = call.temporary(items * 8);
    scratch(call, cub::sum_scan(items));
    call.release(places);
  }
  call.allocate(0);
  const std::size_t length = call.temporary(8);
  if (counts) {
    call.allocate(2);
    scratch(call, cub::run_lengths(items));
  } else {
    scratch(call, cub::unique(items, type));
  }
  call.release(length);
  release_backwards(call, kept);
}

void unique(Call& call) {  // _unique(self, sorted, inverse) and _unique2(..., counts)
  unique_flat(call, false, call.argument(2).toBool(),
              call.argument_count() > 3 && call.argument(3).toBool());
}

// Takes the memory for finding the distinct slices along a dimension. cub's merge sort compares the
// slices. plimsoll's formula for the sort's temporary memory is fitted to recordings
// of a real GPU's memory.
void unique_dim(Call& call) {  // (self, dim, [sorted,] inverse, counts)
  const bool consecutive = call.argument_count() == 4;
  const at::Tensor self = call.tensor(0);
  const std::int64_t dim = dimension_of(call, 1, self);
  const bool inverse = call.argument(consecutive ? 2 : 3).toBool();
  const bool counts = call.argument(consecutive ? 3 : 4).toBool();
  const std::size_t rows = static_cast<std::size_t>(self.size(dim));
  std::int64_t found = self.size(dim);
  if (const at::Tensor values = deciding_values(call, self); values.defined()) {
    found = std::get<0>(at::unique_dim(values, dim)).size(dim);
  }
  std::vector<std::int64_t> sizes = self.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = found;
  call.set_shape(0, meta_empty(sizes, self.scalar_type()));
  call.set_shape(1, meta_empty({inverse ? self.size(dim) : 0}, at::kLong));
  call.set_shape(2, meta_empty({counts ? found : 0}, at::kLong));
  if (self.numel() == 0) return;
  const bool is_copied = !self.is_contiguous() || dim != 0;
  if (is_copied) call.temporary(bytes_of(self));
  call.temporary(rows * 8);
  if (!consecutive) scratch(call, cub::blocks({rows * 8, 8}));
  if (inverse) {
    call.allocate(1);
    const std::size_t places = call.temporary(rows * 8);
    scratch(call, cub::sum_scan(rows));
    call.release(places);
  }
  scratch(call, cub::blocks({rows * 8, 8}));
  if (counts) call.allocate(2);
  call.allocate(0);
}

void unique_consecutive(Call& call) {  // (self, inverse, counts, dim)
  if (call.argument(3).isNone()) {
    unique_flat(call, true, call.argument(1).toBool(), call.argument(2).toBool());
    return;
  }
  const at::Tensor self = call.tensor(0);
  const std::int64_t dim = dimension_of(call, 3, self);
  call.assume(kSizeOfUnknown);
  call.set_shape(0, meta_contiguous(self));
  const auto rows = [&](std::size_t i) {
    return meta_empty({call.argument(i).toBool() ? self.size(dim) : 0}, at::kLong);
  };
  call.set_shape(1, rows(1));
  call.set_shape(2, rows(2));
  call.temporary(static_cast<std::size_t>(self.size(dim)) * 8);
}

// --- counts and repetitions ----------------------------------------------------------------------

void bincount(Call& call) {  // (self, weights, minlength)
  const at::Tensor self = call.tensor(0);
  const at::Tensor weights = call.tensor(1);
  std::int64_t bins = call.argument(2).toInt();
  if (self.numel() != 0) {
    if (const at::Tensor values = deciding_values(call, self); values.defined()) {
      bins = std::max(bins, values.max().item<std::int64_t>() + 1);
    } else {
      const double high = known_of(self).description.high;
      bins = std::max<std::int64_t>(bins,
                                    std::isfinite(high) ? static_cast<std::int64_t>(high) + 1 : 1);
    }
    find_bounds(call, self);
  }
  const at::ScalarType type = !weights.defined()                    ? at::kLong
                              : weights.scalar_type() == at::kFloat ? at::kFloat
                                                                    : at::kDouble;
  call.set_shape(0, meta_empty({bins}, type));
  if (weights.defined() && !c10::isFloatingType(weights.scalar_type())) {
    call.temporary(elements(weights) * 8);
  }
}

void histc(Call& call) {  // (self, bins, min, max)
  const at::Tensor self = call.tensor(0);
  const auto number = [&](std::size_t i) { return call.argument(i).toScalar().toDouble(); };
  const std::int64_t bins = call.argument(1).toInt();
  call.set_shape(0, meta_empty({bins}, self.scalar_type()));
  call.allocate_all();
  if (self.numel() != 0 && number(2) == number(3)) find_bounds(call, self);
}

// The sum of `repeats` is the number of elements in the result. Only the device knows this sum, so
// the host waits for it unless the caller passes the number as `output_size`.
void repeat_interleave(Call& call) {
  const at::Tensor repeats = call.tensor(0);
  const std::size_t ends = call.temporary(elements(repeats) * sizeof(std::int64_t));
  const std::size_t scan = call.temporary(1279);  // cub's temporary memory for a small scan
  call.release(scan);
  const std::size_t negative = call.temporary(elements(repeats));
  const std::size_t any_negative = call.temporary(1);
  call.release(any_negative);
  call.release(negative);
  std::int64_t total_rows = repeats.numel();
  if (!call.argument(1).isNone()) {
    total_rows = call.argument(1).toInt();
  } else if (const at::Tensor values = deciding_values(call, repeats); values.defined()) {
    call.synchronize();
    total_rows = values.sum().item<std::int64_t>();
  } else {
    call.synchronize();
  }
  call.set_shape(0, meta_empty({total_rows}, repeats.scalar_type()));
  call.allocate(0);
  call.release(ends);
}

const RuleTable kCountingRules{
    {"_unique", unique},
    {"_unique2", unique},
    {"unique_dim", unique_dim},
    {"unique_dim_consecutive", unique_dim},
    {"unique_consecutive", unique_consecutive},
    {"bincount", bincount},
    {"histc", histc},
    {"aten::repeat_interleave.Tensor", repeat_interleave},
};

}  // namespace
}  // namespace plimsoll::simulated
