// Sorting, scans and what else cub does.
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/unique_dim.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <tuple>
#include <vector>

#include "rules.h"

namespace plimsoll::simulated {

// Scratch of cub's algorithms, as tuned for compute capability 9.0 and with 64-bit offsets. Other
// chips have other tiles, which changes only the small lookback arrays.
namespace cub {

// Several arrays in one block: each on 256 bytes, and what aligning the first may take.
std::size_t blocks(std::initializer_list<std::size_t> sizes) {
  std::size_t total = 255;
  for (const std::size_t size : sizes) total += round_up(size, 256);
  return total;
}

std::size_t tiles(std::size_t items, std::size_t tile) { return (items + tile - 1) / tile; }

// A status word for each tile, and for a warp more.
std::size_t tile_states(std::size_t items, std::size_t tile, std::size_t word) {
  return (tiles(items, tile) + 32) * word;
}

std::size_t onesweep_tile(std::size_t key, std::size_t value, bool is_float) {
  struct Policy {
    std::size_t threads, items;
  } policy{384, value < 8 ? 30U : 24U};
  if (key == 4) {
    policy.items = value == 0 ? (is_float ? 18 : 19) : value < 8 ? 17 : 29;
  } else if (key == 2) {
    policy = value == 0 ? Policy{512, 19} : value < 8 ? Policy{512, 12} : Policy{512, 23};
  } else if (key == 1) {
    policy = value == 0 ? Policy{512, 19} : value < 8 ? Policy{512, 14} : Policy{384, 18};
  }
  const std::size_t widest = std::max({key, value, std::size_t{4}});
  return policy.threads * std::max<std::size_t>(1, policy.items * 4 / widest);
}

// DeviceRadixSort over `bits` of the keys; no values: `value` is 0.
std::size_t radix_sort(std::size_t items, std::size_t key, std::size_t value, std::size_t bits,
                       bool is_float) {
  const std::size_t widest = std::max({key, value, std::size_t{4}});
  if (items <= 256 * std::max<std::size_t>(1, 19 * 4 / widest)) return 1;
  const std::size_t passes = (bits + 7) / 8;
  const std::size_t tile = onesweep_tile(key, value, is_float);
  const std::size_t portion = ((std::size_t{1} << 28) - 1) / tile * tile;
  const std::size_t portions = tiles(items, portion);
  const std::size_t extra = passes > 1 ? items : 0;
  return blocks({portions * passes * 256 * 8, tiles(std::min(items, portion), tile) * 256 * 4,
                 extra * key, extra * value, portions * passes * 4});
}

// DeviceScan with a custom operator.
std::size_t scan(std::size_t items, at::ScalarType type) {
  const std::size_t size = c10::elementSize(type);
  const std::size_t tile = 128 * std::clamp<std::size_t>(15 * 4 / size, 1, 30);
  if (c10::isReducedFloatingType(type) || size > 8) {  // three arrays, no word of their own
    return blocks({blocks({tile_states(items, tile, 4), tile_states(items, tile, size),
                           tile_states(items, tile, size)})});
  }
  return blocks({blocks({tile_states(items, tile, size == 8 ? 16 : size == 4 ? 8 : 4)})});
}

// DeviceScan::InclusiveSum of 32-bit integers.
std::size_t sum_scan(std::size_t items) {
  return blocks({blocks({tile_states(items, 128 * 24, 8)})});
}

// DeviceScan::InclusiveScanByKey; its tiles are fitted for short inputs only.
std::size_t scan_by_key(std::size_t items, std::size_t key) {
  const std::size_t tile = key == 8 ? 224 * 10 : 288 * 14;
  return blocks({tile_states(items, tile, 16), tiles(items, tile) * key});
}

// DeviceSelect::Unique
std::size_t unique(std::size_t items, at::ScalarType type) {
  const std::size_t size = c10::elementSize(type);
  const std::size_t tile = c10::isReducedFloatingType(type) ? 128 * 10
                           : size == 8                      ? 384 * 11
                           : size == 4                      ? 384 * 17
                                                            : 256 * 22;
  return blocks({blocks({tile_states(items, tile, 8)})});
}

std::size_t unique_by_key(std::size_t items) {
  return blocks({blocks({tile_states(items, 640 * 7, 16)})});
}

// DeviceRunLengthEncode::Encode; the tile is fitted.
std::size_t run_lengths(std::size_t items) { return blocks({tile_states(items, 128 * 6, 16)}); }

}  // namespace cub

namespace {

bool is_placeholder(const at::Tensor& tensor) {
  const Allocation* const allocation = allocation_of(tensor);
  return allocation != nullptr && allocation->is_placeholder;
}

// The values that decide a result's size; undefined where they are not kept.
at::Tensor deciding_values(Call& call, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return values_of(tensor);
  if (!has_values(tensor)) return {};
  if (is_placeholder(tensor)) call.assume("the size of its result was taken from placeholders");
  return values_of(tensor);
}

// A one-dimensional result that was made for `capacity` elements, then cut.
at::Tensor meta_cut(std::int64_t capacity, std::int64_t length, at::ScalarType type) {
  at::Tensor made = meta_empty({capacity}, type);
  made.unsafeGetTensorImpl()->set_sizes_contiguous({length});
  return made;
}

std::size_t bits_of(const at::Tensor& tensor) { return tensor.itemsize() * 8; }

// --- sort ----------------------------------------------------------------------------------------

// What sorting along a dimension takes besides values and indices.
void sort_inner(Call& call, const at::Tensor& self, std::int64_t dim) {
  if (self.dim() == 0 || self.numel() == 0) return;
  const std::size_t count = static_cast<std::size_t>(self.size(dim));
  const std::size_t numel = elements(self);
  const std::size_t key = self.itemsize();
  if (count <= 4096) return scratch(call, count * 8);  // in place, from indices 0, 1, ...
  std::vector<std::size_t> kept;
  const bool in_order = self.is_non_overlapping_and_dense() && self.stride(dim) == 1;
  if (!in_order) {  // a copy with this dimension last; results too, to copy from
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
  } else if (segments < 128) {  // sorts all together, then by segment
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
  for (auto last = kept.rbegin(); last != kept.rend(); ++last) call.release(*last);
}

void sort(Call& call) {  // (self, dim, descending) or (self, stable, dim, descending)
  call.allocate_all();
  const at::Tensor self = call.tensor(0);
  const bool names_stable = !call.argument(1).isInt();
  const std::int64_t dim = call.argument(names_stable ? 2 : 1).toInt();
  sort_inner(call, self, dim < 0 ? dim + self.dim() : dim);
}

// The whole tensor's median.
void median(Call& call) {
  const at::Tensor self = call.tensor(0);
  if (self.numel() == 0) return;
  const std::size_t sorted = call.temporary(elements(self) * self.itemsize());
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
  std::int64_t dim = call.argument(2).toInt();
  if (dim < 0) dim += self.dim();
  const std::size_t size = static_cast<std::size_t>(self.size(dim));
  const std::size_t slices = elements(self) / size;
  if (!self.is_contiguous()) call.temporary(elements(self) * self.itemsize());
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
    for (auto last = kept.rbegin(); last != kept.rend(); ++last) call.release(*last);
  }
  const std::int64_t k = call.argument(1).toInt();
  if (call.argument(4).toBool() && k > 4096) {  // sorted outside, then copied back
    const std::size_t count = elements(self) / size * static_cast<std::size_t>(k);
    const std::size_t indices = call.temporary(count * 8);
    const std::size_t values = call.temporary(count * self.itemsize());
    sort_inner(call, call.shape_of_result(0), dim);
    scratch(call, count * 8);
    call.release(values);
    call.release(indices);
  }
}

// --- scans ---------------------------------------------------------------------------------------

void scan(Call& call) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor result = call.allocate(0);
  if (self.dim() == 0 || self.numel() == 0) return;
  if (self.scalar_type() != result.scalar_type() || !self.is_contiguous()) {
    call.temporary(elements(self) * result.itemsize());
  }
  if (self.dim() == 1 || self.numel() == self.size(call.argument(1).toInt())) {
    scratch(call, cub::scan(elements(self), result.scalar_type()));
  }
}

void logarithmic_scan(Call& call) {  // has no Meta kernel
  const at::Tensor self = call.tensor(0);
  call.set_shape(0, meta_empty(self.sizes(), self.scalar_type()));
  scan(call);
}

// --- unique --------------------------------------------------------------------------------------

// Elements are sorted unless only neighbors count; results are cut from memory for all of them.
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
    call.assume("all elements are taken for distinct");
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
  for (auto last = kept.rbegin(); last != kept.rend(); ++last) call.release(*last);
}

void unique(Call& call) {  // _unique(self, sorted, inverse) and _unique2(..., counts)
  unique_flat(call, false, call.argument(2).toBool(),
              call.argument_count() > 3 && call.argument(3).toBool());
}

// Rows along a dimension; cub's merge sort, whose scratch is fitted.
void unique_dim(Call& call) {  // (self, dim, sorted, inverse, counts), consecutive: no sorted
  const bool consecutive = call.argument_count() == 4;
  const at::Tensor self = call.tensor(0);
  std::int64_t dim = call.argument(1).toInt();
  if (dim < 0) dim += self.dim();
  const bool inverse = call.argument(consecutive ? 2 : 3).toBool();
  const bool counts = call.argument(consecutive ? 3 : 4).toBool();
  const std::size_t rows = static_cast<std::size_t>(self.size(dim));
  std::int64_t found = self.size(dim);
  if (const at::Tensor values = deciding_values(call, self); values.defined()) {
    found = std::get<0>(at::unique_dim(values, dim)).size(dim);
  } else {
    call.assume("all rows are taken for distinct");
  }
  std::vector<std::int64_t> sizes = self.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = found;
  call.set_shape(0, meta_empty(sizes, self.scalar_type()));
  call.set_shape(1, meta_empty({inverse ? self.size(dim) : 0}, at::kLong));
  call.set_shape(2, meta_empty({counts ? found : 0}, at::kLong));
  if (self.numel() == 0) return;
  const bool is_copied = !self.is_contiguous() || dim != 0;
  if (is_copied) call.temporary(elements(self) * self.itemsize());
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
  std::int64_t dim = call.argument(3).toInt();
  if (dim < 0) dim += self.dim();
  call.assume("all rows are taken for distinct");
  call.set_shape(0, meta_empty(self.sizes(), self.scalar_type()));
  const auto rows = [&](std::size_t i) {
    return meta_empty({call.argument(i).toBool() ? self.size(dim) : 0}, at::kLong);
  };
  call.set_shape(1, rows(1));
  call.set_shape(2, rows(2));
  call.temporary(static_cast<std::size_t>(self.size(dim)) * 8);
}

// --- random --------------------------------------------------------------------------------------

void randperm(Call& call) {
  const at::Tensor result = call.allocate(0);
  const std::size_t n = elements(result);
  if (n == 0) return;
  const std::size_t size = result.itemsize();
  scratch(call, size);
  const double wide = static_cast<double>(n);
  // As many random bits as make equal keys unlikely.
  const double space = wide - (6 * wide * wide + 1) / (12 * std::log(0.9));
  const auto bits = static_cast<std::size_t>(std::min(64.0, std::ceil(std::log2(space))));
  const std::size_t key = bits <= 32 ? 4 : 8;
  call.temporary(n * size);
  call.temporary(n * key);
  call.temporary(n * key);
  call.temporary(cub::radix_sort(n, key, size, bits, false));
}

void multinomial(Call& call) {  // (self, num_samples, replacement)
  const at::Tensor self = call.tensor(0);
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  const std::int64_t samples = call.argument(1).toInt();
  const std::size_t size = self.itemsize();
  const std::size_t bytes = elements(self) * size;
  call.allocate_all();
  if (self.numel() == 0) return;
  if (call.argument(2).toBool() && samples != 1) {
    for (int i = 0; i < 3; ++i) call.temporary(bytes);
    return;
  }
  // Are all finite, none negative?
  at::Tensor largest = at::max(self);
  const std::size_t is_finite = call.temporary(1);
  at::Tensor smallest = at::min(self);
  const std::size_t is_positive = call.temporary(1);
  call.temporary(1);
  call.release(is_positive);
  smallest = at::Tensor();
  call.release(is_finite);
  largest = at::Tensor();
  // Has any row only zeros?
  const std::size_t rows = self.dim() == 2 ? static_cast<std::size_t>(self.size(0)) : 1;
  at::Tensor sums = self.dim() == 2 ? at::sum(self, {1}) : at::sum(self);
  const std::size_t are_zero = call.temporary(rows);
  if (self.dim() == 2) {
    call.temporary(1);
    call.release(are_zero);
  }
  sums = at::Tensor();
  scratch(call, 1);
  const std::size_t noise = call.temporary(bytes);
  if (samples != 1) scratch(call, rows * static_cast<std::size_t>(samples) * size);
  call.release(noise);
}

void sample_dirichlet(Call& call) {  // has no Meta kernel
  const at::Tensor self = call.tensor(0);
  call.set_shape(0, meta_empty(self.sizes(), self.scalar_type()));
  call.allocate_all();
  if (self.numel() == 0 || self.dim() == 0) return;
  call.temporary(elements(self) / static_cast<std::size_t>(self.size(-1)) * self.itemsize());
}

// --- histograms, membership ----------------------------------------------------------------------

void bincount(Call& call) {  // (self, weights, minlength)
  const at::Tensor self = call.tensor(0);
  const at::Tensor weights = call.tensor(1);
  std::int64_t bins = call.argument(2).toInt();
  if (self.numel() != 0) {
    if (const at::Tensor values = deciding_values(call, self); values.defined()) {
      bins = std::max(bins, values.max().item<std::int64_t>() + 1);
    } else {
      call.assume("no value is larger than minlength asks for");
      bins = std::max<std::int64_t>(bins, 1);
    }
    (void)at::min(self);
    (void)at::max(self);
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
  if (self.numel() == 0 || number(2) != number(3)) return;
  (void)at::min(self);
  (void)at::max(self);
}

void nonzero_static(Call& call) {  // (self, size, fill_value); has no Meta kernel
  const at::Tensor self = call.tensor(0);
  call.set_shape(0, meta_empty({call.argument(1).toInt(), self.dim()}, at::kLong));
  call.allocate_all();
}

void searchsorted(Call& call) {
  call.allocate_all();
  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor input = call.tensor(i);
    if (input.defined() && !input.is_contiguous()) {
      call.temporary(elements(input) * input.itemsize());
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
  at::Tensor of_items = items.flatten();
  at::Tensor of_tests = tests.flatten();
  at::Tensor order;
  if (!is_unique) {
    std::tie(of_items, order) = at::_unique(items, false, true);
    of_tests = std::get<0>(at::_unique(tests, false));
  }
  at::Tensor all = at::cat({of_items, of_tests});
  of_items = of_tests = at::Tensor();
  const std::size_t count = elements(all);
  const std::size_t sorted = call.temporary(count * all.itemsize());
  const std::size_t places = call.temporary(count * 8);
  sort_inner(call, all, 0);
  const std::size_t mask = call.temporary(count);
  scratch(call, count - 1);
  const std::size_t restored = call.temporary(count);
  if (!is_unique) scratch(call, elements(items));
  for (const std::size_t done : {restored, mask, sorted, places}) call.release(done);
}

constexpr RuleRow kSortingRules[] = {
    {"sort", sort},
    {"topk", topk},
    {"kthvalue", nothing},
    {"mode", nothing},
    {"aten::median", median},
    {"aten::nanmedian", median},
    {"median", nothing},
    {"nanmedian", nothing},
    {"cumsum", scan},
    {"cumsum_", scan},
    {"cumprod", scan},
    {"cumprod_", scan},
    {"_logcumsumexp", logarithmic_scan},
    {"logcumsumexp", scan},
    {"_cummax_helper", nothing},
    {"_cummin_helper", nothing},
    {"_unique", unique},
    {"_unique2", unique},
    {"unique_dim", unique_dim},
    {"unique_dim_consecutive", unique_dim},
    {"unique_consecutive", unique_consecutive},
    {"randperm", randperm, kOverwrites},
    {"multinomial", multinomial},
    {"_sample_dirichlet", sample_dirichlet},
    {"nonzero_static", nonzero_static},
    {"bincount", bincount},
    {"histc", histc},
    {"searchsorted", searchsorted},
    {"bucketize", searchsorted},
    {"isin", isin},
};

}  // namespace

std::span<const RuleRow> sorting_rules() { return kSortingRules; }

}  // namespace plimsoll::simulated
