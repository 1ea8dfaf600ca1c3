// Reading and writing elements by indices and masks, scattering, and rolling.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/index.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nonzero.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/tensors.h"
#include "rules/cub.h"
#include "rules/rules.h"

namespace plimsoll::simulated {

namespace {

// --- index ---------------------------------------------------------------------------------------

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

// Describes one of the indices in x[i, j].
struct Index {
  at::Tensor given;  // undefined for a whole dimension, as in x[:]
  // Has the sizes and strides of the int64 index, but no memory. For a mask, this tensor is
  // undefined until nonzero has run and the number of positions is known.
  at::Tensor shape;
  std::optional<std::size_t> places;     // for a mask: the number of the step that ran nonzero
  std::optional<std::size_t> converted;  // the number of the step that made the int64 copy
};
using Indices = std::vector<Index>;

// Returns the indices: masks become the positions of their true elements, and 32-bit indices become
// 64-bit ones.
std::shared_ptr<Indices> expand(Call& call, const at::Tensor& self, const c10::IValue& list) {
  auto expanded = std::make_shared<Indices>();
  for (const c10::IValue& value : list.toListRef()) {
    const at::Tensor index = value.isTensor() ? value.toTensor() : at::Tensor();
    if (!index.defined()) {
      expanded->emplace_back();
    } else if (is_mask(index)) {
      const std::size_t first = expanded->size();
      for (std::int64_t i = 0; i < index.dim(); ++i) {
        const std::size_t dim = first + static_cast<std::size_t>(i);
        TORCH_CHECK_INDEX(static_cast<std::int64_t>(dim) < self.dim() &&
                              index.size(i) == self.size(static_cast<std::int64_t>(dim)),
                          "The shape of the mask ", index.sizes(), " at index ", i,
                          " does not match the shape of the indexed tensor ", self.sizes(),
                          " at index ", dim);
      }
      const std::size_t places = call.run([index] { return std::vector{at::nonzero(index)}; });
      expanded->insert(expanded->end(), static_cast<std::size_t>(index.dim()),
                       {index, {}, places, {}});
      call.then([expanded, first, places, index](Call& call) {
        const at::Tensor shape = meta_empty({call.outcome(places).size(0)}, at::kLong);
        for (std::size_t i = first; i < first + static_cast<std::size_t>(index.dim()); ++i) {
          (*expanded)[i].shape = shape;
          if (index.is_cpu()) (*expanded)[i].converted = call.temporary(elements(shape) * 8);
        }
      });
      if (index.dim() == 0) call.release(places);
    } else {
      Index entry{index, meta_empty({0}, at::kLong), {}, {}};
      entry.shape.unsafeGetTensorImpl()->set_sizes_and_strides(index.sizes(), index.strides());
      if (index.scalar_type() != at::kLong || index.is_cpu()) {
        entry.converted = call.temporary(elements(index) * 8);
      }
      expanded->push_back(std::move(entry));
    }
  }
  return expanded;
}

bool has_mask(const Indices& indices) {
  return std::any_of(indices.begin(), indices.end(),
                     [](const Index& index) { return index.places.has_value(); });
}

// Returns whether index `i` is the last of the indices that replace one mask.
bool ends_mask(const Indices& indices, std::size_t i) {
  return indices[i].places &&
         (i + 1 == indices.size() || indices[i + 1].places != indices[i].places);
}

void release_places(Call& call, const Indices& indices) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (ends_mask(indices, i)) call.release(*indices[i].places);
  }
}

std::vector<std::int64_t> broadcast_sizes(const Indices& indices) {
  std::vector<std::int64_t> sizes;
  for (const Index& index : indices) {
    if (index.shape.defined()) sizes = at::infer_size(sizes, index.shape.sizes());
  }
  return sizes;
}

// The kernel needs all indices to have the same strides. If they do not, this function takes memory
// for a contiguous copy of each index that is not contiguous.
void even_strides(Call& call, const Indices& indices) {
  std::vector<at::Tensor> shapes;
  const std::vector<std::int64_t> sizes = broadcast_sizes(indices);
  for (const Index& index : indices) {
    if (!index.shape.defined()) continue;
    at::Tensor shape = index.shape.expand(sizes);
    if (index.places) {  // a column of nonzero's result; such a column is contiguous
      shape.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, {1});
    }
    shapes.push_back(std::move(shape));
  }
  const bool are_even = std::all_of(shapes.begin(), shapes.end(), [&](const at::Tensor& shape) {
    return shape.strides() == shapes[0].strides();
  });
  if (are_even) return;
  for (const at::Tensor& shape : shapes) {
    if (!shape.is_contiguous()) call.temporary(elements(shape) * 8);
  }
}

// Returns the shape of self[indices].
at::Tensor indexed_shape(const at::Tensor& self, const Indices& indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (const Index& index : indices) {
    list.push_back(index.shape.defined() ? std::optional(index.shape) : std::nullopt);
  }
  return at::index(meta_like(self), list);
}

void index(Call& call) {
  const at::Tensor self = call.tensor(0);
  const auto indices = expand(call, self, call.argument(1));
  call.then([self, indices](Call& call) {
    if (has_mask(*indices)) call.set_shape(0, indexed_shape(self, *indices));
    call.infer();
    even_strides(call, *indices);
    call.allocate_all();
    release_places(call, *indices);
  });
}

void masked_select(Call& call) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor mask = call.tensor(1);
  const std::vector<std::int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  const std::size_t places = call.run([mask, sizes] {
    return std::vector{at::nonzero(mask.sizes() == sizes ? mask : mask.expand(sizes))};
  });
  call.then([places, type = self.scalar_type()](Call& call) {
    call.set_shape(0, meta_empty({call.outcome(places).size(0)}, type));
    call.allocate_all();
    call.release(places);
  });
}

// Takes the memory of the kernel that sorts the positions before it writes. After the sort, equal
// positions are neighbours, so one thread can do all writes to a position.
void put_sorted(Call& call, const Indices& indices, bool is_checked) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor values = call.tensor(2);
  const std::vector<std::int64_t> sizes = broadcast_sizes(indices);
  const std::size_t count = static_cast<std::size_t>(c10::multiply_integers(sizes));
  bool is_first = true;
  std::int64_t slice = 1;  // elements per position
  if (is_checked && count != 0) {
    for (const Index& index : indices) {
      if (!index.given.defined() || index.places || index.given.is_cpu()) continue;
      for (const bool is_largest : {true, false}) {
        const std::size_t extreme = call.run([given = index.given, is_largest] {
          return std::vector{is_largest ? at::max(given) : at::min(given)};
        });
        scratch(call, 1);  // result of the check that the extreme is in range
        call.release(extreme);
      }
    }
  }
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Index& index = indices[i];
    if (!index.shape.defined()) continue;
    const std::size_t wrapped = call.temporary(count * 8);
    const std::size_t scaled = call.temporary(count * 8);
    call.release(wrapped);
    if (index.converted) call.release(*index.converted);
    if (ends_mask(indices, i)) call.release(*index.places);
    if (!is_first) call.release(scaled);  // the kernel has added this scaled index to the first one
    is_first = false;
    slice = 1;
    for (std::int64_t dim = static_cast<std::int64_t>(i) + 1; dim < self.dim(); ++dim) {
      slice *= self.size(dim);
    }
  }
  if (is_first) return;
  const at::Tensor written = indexed_shape(self, indices);
  if (values.numel() < written.numel() || !values.is_contiguous()) {
    call.temporary(elements(written) * values.itemsize());
  }
  if (count == 0 || slice == 0) return;
  copy_unless_contiguous(call, self);
  call.temporary(count * 8);  // sorted positions
  call.temporary(count * 8);  // where each position was before the sort
  call.temporary(count * 8);  // 0, 1, …, which the sort permutes
  const std::int64_t last = std::max<std::int64_t>(self.numel(), 1) - 1;
  const auto largest = static_cast<std::size_t>(last / slice);
  const std::size_t bits = std::max<std::size_t>(1, std::bit_width(largest));
  scratch(call, cub::radix_sort(count, 8, 8, bits, false));
  call.release_last();
}

void index_put(Call& call) {  // (self, indices, values, accumulate, unsafe)
  const at::Tensor self = call.tensor(0);
  const at::Tensor values = call.tensor(2);
  const bool accumulate = call.argument(3).toBool();
  const bool is_unsafe = call.argument_count() > 4 && call.argument(4).toBool();
  call.set_shape(0, {});
  // If the only index is a mask and the value is one number on the CPU, PyTorch calls masked_fill,
  // which takes no memory. If `accumulate` is true, PyTorch does not call masked_fill.
  if (!accumulate && values.numel() == 1 && values.is_cpu()) {
    int masks = 0;
    bool only_masks = true;
    for (const c10::IValue& value : call.argument(1).toListRef()) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      only_masks = only_masks && is_mask(value.toTensor());
      ++masks;
    }
    if (only_masks && masks == 1) return;
    call.temporary(values.itemsize());
  }
  TORCH_CHECK_INDEX(self.scalar_type() == values.scalar_type(),
                    "Index put requires the source and destination dtypes match, got ",
                    self.scalar_type(), " for the destination and ", values.scalar_type(),
                    " for the source.");
  const auto indices = expand(call, self, call.argument(1));
  const bool is_sorted = accumulate || at::globalContext().deterministicAlgorithms();
  call.then([self, indices, is_sorted, is_unsafe](Call& call) {
    (void)indexed_shape(self, *indices);  // throws if the shapes cannot be combined
    if (is_sorted) return put_sorted(call, *indices, !is_unsafe);
    even_strides(call, *indices);
    release_places(call, *indices);
  });
}

void masked_fill(Call& call) {  // (self, mask, value)
  TORCH_CHECK(call.tensor(1).scalar_type() == at::kBool,
              "masked_fill only supports boolean masks, but got dtype ",
              call.tensor(1).scalar_type());
}

void masked_scatter(Call& call) {  // (self, mask, source)
  const at::Tensor self = call.tensor(0);
  const at::Tensor mask = call.tensor(1);
  const at::Tensor source = call.tensor(2);
  call.allocate_all();
  if (self.numel() == 0) return;
  if (mask.sizes() != self.sizes() || !mask.is_contiguous()) call.temporary(elements(self));
  call.temporary(elements(self) * 8);
  scratch(call, cub::scan(elements(self), at::kLong));
  copy_unless_contiguous(call, source);
}

// Simulates index_add(self, dim, index, source, alpha). If the program requires deterministic
// algorithms, the kernel writes in a fixed order.
void index_add(Call& call) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor source = call.tensor(3);
  // PyTorch's Meta kernel refuses an empty source; the CUDA kernel accepts one.
  if (source.numel() == 0) call.set_shape(0, meta_contiguous(self));
  call.allocate(0);
  if (!at::globalContext().deterministicAlgorithms() || self.dim() == 0) return;
  const std::int64_t dim = dimension_of(call, 1, self);
  c10::List<std::optional<at::Tensor>> indices;
  for (std::int64_t i = 0; i < dim; ++i) indices.push_back(std::nullopt);
  indices.push_back(call.tensor(2));
  call.temporary(bytes_of(source));
  call.then([indices, source](Call& call) {
    at::Tensor target = call.results()[0].toTensor();
    at::_index_put_impl_(target, indices, source, /*accumulate=*/true, /*unsafe=*/false);
  });
}

// --- scatter -------------------------------------------------------------------------------------

void scatter_reduce(Call& call) {  // (self, dim, index, src, reduce, include_self)
  call.allocate_all();
  if (call.argument(4).toStringView() != "mean") return;
  const at::Tensor self = call.tensor(0);
  call.temporary(bytes_of(call.tensor(3)));
  call.temporary(bytes_of(self));
  scratch(call, elements(self));
}

// Simulates roll. If several dimensions are rolled, the kernel rolls one after the other.
void roll(Call& call) {
  const at::Tensor input = call.tensor(0);
  const std::size_t dims = call.argument(2).toIntVector().size();
  for (std::size_t i = 1; i < dims; ++i) call.temporary(bytes_of(input));
  if (dims < 2 && !input.is_contiguous()) call.temporary(bytes_of(input));
}

const RuleTable kIndexingRules{
    {"index", kUnknown, kTakesIndices | kMixesDevices},
    {"index_put*", kUnknown, kTakesIndices | kMixesDevices | kNoOverlap},
    {"_unsafe_index*", kUnknown, kTakesIndices | kMixesDevices},
    {"index_fill*", kUnknown, kByIterator | kNoOverlap},
    {"aten::index.Tensor", index},
    {"aten::_unsafe_index.Tensor", index},
    {"masked_select", masked_select, kNoOwnOverlap | kNoOverlap},
    {"_index_put_impl_", index_put, kTakesIndices | kMixesDevices | kNoOverlap},
    {"masked_scatter_", masked_scatter, kNoOwnOverlap},
    {"scatter_reduce", scatter_reduce, kNoPartialOverlap},
    {"scatter_reduce_", scatter_reduce},
    {"index_add", index_add, kNoPartialOverlap},
    {"index_add_", index_add},
    {"index_copy", nothing, kNoPartialOverlap},
    {"index_reduce", nothing, kNoPartialOverlap},
    {"index_select", nothing, kNoOwnOverlap | kNoOverlap},
    {"scatter", nothing, kNoPartialOverlap},
    {"scatter_add", nothing, kNoPartialOverlap},
    {"masked_fill", masked_fill},
    {"masked_fill_", masked_fill, kNoPartialOverlap},
    {"take", nothing, kNoOwnOverlap | kNoOverlap},
    {"put_", nothing, kNoOwnOverlap | kNoOverlap},
    {"where", nothing, kLikeIterator},
    {"roll", roll},
};

}  // namespace
}  // namespace plimsoll::simulated
