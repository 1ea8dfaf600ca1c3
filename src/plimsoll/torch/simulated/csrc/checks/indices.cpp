// Checks indices of elements, rows, classes and positions.
#include <ATen/ops/sum.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checks/checks.h"
#include "checks/types.h"
#include "device/tensors.h"
#include "device/virtual.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Returns the tensor argument with this name in the operation's schema. If the schema has no such
// name, returns an undefined tensor.
Tensor named(const Call& call, const char* name) {
  const auto place = call.op().schema().argumentIndexWithName(name);
  return place ? call.tensor(static_cast<std::size_t>(*place)) : Tensor();
}
std::int64_t named_number(const Call& call, const char* name, std::int64_t otherwise) {
  const auto place = call.op().schema().argumentIndexWithName(name);
  if (!place) return otherwise;
  const c10::IValue& value = call.argument(static_cast<std::size_t>(*place));
  return value.isInt() ? value.toInt() : otherwise;
}

Limits below(std::int64_t size) { return {0, static_cast<double>(size - 1)}; }
// Returns the limits of an index that may be negative; negative ones count from the end.
Limits around(std::int64_t size) {
  return {-static_cast<double>(size), static_cast<double>(size - 1)};
}

std::string dimension_text(std::int64_t dim, std::int64_t size) {
  return "dimension " + std::to_string(dim) + ", whose size is " + std::to_string(size);
}

constexpr const char* kIndex = "an index";

// Checks the indices i and j of x[i, j]. A mask of n dimensions takes the place of n indices. It is
// not checked here, because PyTorch checks a mask's shape on the host.
void of_elements(const Call& call) {  // (self, indices, ...)
  const Tensor self = call.tensor(0);
  std::int64_t dim = 0;
  for (const Tensor& index : call.tensors(1)) {
    const bool is_mask =
        index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
    if (index.defined() && !is_mask && dim < self.dim()) {
      require_within(call.info().name, index, around(self.size(dim)), kIndex,
                     dimension_text(dim, self.size(dim)));
    }
    dim += is_mask ? index.dim() : 1;
  }
}

// Arguments: (self, dim, index, ...).
template <Limits (*Accepted)(std::int64_t)>
void along_dimension(const Call& call) {
  const Tensor self = named(call, "self");
  const Tensor index = named(call, "index");
  if (!self.defined() || !index.defined()) return;
  const std::int64_t dim = self.dim() == 0 ? 0 : named_number(call, "dim", 0);
  const std::int64_t at = dim < 0 ? dim + self.dim() : dim;
  if (at < 0 || at >= std::max<std::int64_t>(self.dim(), 1)) return;
  const std::int64_t size = self.dim() == 0 ? 1 : self.size(at);
  require_within(call.info().name, index, Accepted(size), kIndex, dimension_text(at, size));
}

// Checks an index along a dimension. If the tensor is empty and the index is not, throws PyTorch's
// error: PyTorch gives the tensor the index's shape, and the tensor's storage is too small for that
// (restride_dim in aten/src/ATen/native/cuda/ScatterGatherKernel.cu).
void scatter_or_gather(const Call& call) {
  const Tensor self = named(call, "self");
  const Tensor index = named(call, "index");
  if (self.defined() && index.defined() && index.numel() != 0 && self.numel() == 0) {
    std::vector<std::int64_t> strides = self.strides().vec();
    const std::int64_t dim = named_number(call, "dim", 0);
    strides.at(static_cast<std::size_t>(dim < 0 ? dim + self.dim() : dim)) = 0;
    TORCH_CHECK(false, "setStorage: sizes ", index.sizes(), ", strides ", at::IntArrayRef(strides),
                ", storage offset ", self.storage_offset(), ", and itemsize ", self.itemsize(),
                " requiring a storage size of ", index.numel() * self.itemsize(),
                " are out of bounds for storage of size ", self.storage().nbytes());
  }
  along_dimension<below>(call);
}

void of_all_elements(const Call& call) {  // (self, index, ...)
  const Tensor self = call.tensor(0);
  require_within(call.info().name, named(call, "index"), around(self.numel()), kIndex,
                 "a tensor of " + std::to_string(self.numel()) + " elements");
}

void require_rows(std::uint32_t operation, const Tensor& table, const Tensor& indices) {
  if (table.dim() == 0) return;
  require_within(operation, indices, below(table.size(0)), kIndex,
                 "the embedding, which has " + std::to_string(table.size(0)) + " rows");
}

// Implements aten::embedding like PyTorch, by index_select. The kernel is hand-written so that an
// error names the embedding and not index_select.
Tensor embedding(const Tensor& table, const Tensor& indices, c10::SymInt /*padding_idx*/,
                 bool /*scale_grad_by_freq*/, bool /*sparse*/) {
  TORCH_CHECK(table.dim() == 2, "'weight' must be 2-D");
  check_embedding_indices(indices);
  require_rows(runtime().name("aten::embedding"), table, indices);
  if (indices.dim() == 1) return table.index_select(0, indices);
  std::vector<std::int64_t> sizes = indices.sizes().vec();
  sizes.push_back(table.size(1));
  return table.index_select(0, indices.reshape({-1})).view(sizes);
}

void of_bags(const Call& call) {  // (weight, indices, offsets, ...)
  require_rows(call.info().name, call.tensor(0), call.tensor(1));
  const std::int64_t count = call.tensor(1).numel();
  require_within(call.info().name, call.tensor(2), {0, static_cast<double>(count)}, "an offset",
                 "the " + std::to_string(count) + " indices of the bags");
}

void of_classes(const Call& call) {
  const Tensor scores = named(call, "self");
  const bool is_image = scores.dim() > 2;
  const std::int64_t classes = scores.dim() == 0 ? 1 : scores.size(is_image ? 1 : -1);
  Limits limits = below(classes);
  if (call.op().schema().argumentIndexWithName("ignore_index")) {
    limits.except = named_number(call, "ignore_index", -100);
  }
  require_within(call.info().name, named(call, "target"), limits, "a target",
                 "the " + std::to_string(classes) + " classes");
}

// Checks the indices of max_unpool, which are the positions of the maxima.
void of_places(const Call& call) {  // (self, indices, output_size, ...)
  if (!call.argument(2).isIntList()) return;
  const std::vector<std::int64_t> sizes = call.argument(2).toIntVector();
  const std::int64_t places = c10::multiply_integers(sizes);
  require_within(call.info().name, call.tensor(1), below(places), kIndex,
                 "the output, which has " + std::to_string(places) + " places");
}

void enough_to_scatter(const Call& call) {  // (self, mask, source)
  const Tensor mask = known_values(call.tensor(1));
  if (!mask.defined()) return;
  const WithContentsScope real;
  const std::int64_t wanted =
      mask.expand(call.tensor(0).sizes()).count_nonzero().item<std::int64_t>();
  const std::int64_t found = call.tensor(2).numel();
  if (wanted > found) {
    fail_device(call.info().name, "the mask selects " + std::to_string(wanted) +
                                      " elements, and the source has " + std::to_string(found));
  }
}

void repeats(const Call& call) {  // (repeats, output_size)
  const auto negative = find_outside(call.info().name, call.tensor(0), {0, Description::kNone});
  TORCH_CHECK(!negative, "repeats can not be negative");
  const Tensor counts = known_values(call.tensor(0));
  if (!counts.defined() || !call.argument(1).isInt()) return;
  const WithContentsScope real;
  const std::int64_t sum = counts.sum().item<std::int64_t>();
  if (sum != call.argument(1).toInt()) {
    fail_device(call.info().name, "output_size is " + std::to_string(call.argument(1).toInt()) +
                                      ", and the repeats add up to " + std::to_string(sum));
  }
}

void counted(const Call& call) {  // bincount(self, weights, minlength)
  const auto negative = find_outside(call.info().name, call.tensor(0), {0, Description::kNone});
  TORCH_CHECK(!negative, "bincount only supports 1-d non-negative integral inputs.");
}

// Checks the indices of a tensor with compressed rows or columns. The compressed indices must start
// at 0 and never fall. Within a row or column, the plain indices must strictly increase.
//
// Arguments: (is_crow, compressed_idx, plain_idx, cdim, dim, nnz).
void compressed(const Call& call) {
  const Tensor ends = known_values(call.tensor(1));
  const Tensor plain = known_values(call.tensor(2));
  const std::int64_t size = call.argument(4).toInt();
  const std::int64_t all = call.argument(5).toInt();
  require_within(call.info().name, call.tensor(2), below(size), kIndex,
                 "a compressed tensor of " + std::to_string(size) + " rows or columns");
  if (!ends.defined() || !plain.defined()) return;
  const WithContentsScope real;
  const Tensor rows = ends.to(at::kLong).reshape({-1, ends.size(-1)}).contiguous();
  const Tensor columns = plain.to(at::kLong).reshape({-1, plain.size(-1)}).contiguous();
  for (std::int64_t batch = 0; batch < rows.size(0); ++batch) {
    const auto* const end = rows.const_data_ptr<std::int64_t>() + batch * rows.size(1);
    const auto* const column = columns.const_data_ptr<std::int64_t>() + batch * columns.size(1);
    bool holds = end[0] == 0 && end[rows.size(1) - 1] == all;
    for (std::int64_t i = 0; holds && i + 1 < rows.size(1); ++i) {
      holds = end[i] <= end[i + 1] && end[i + 1] - end[i] <= size && end[i + 1] <= all;
      for (std::int64_t j = end[i] + 1; holds && j < end[i + 1]; ++j) {
        holds = column[j - 1] < column[j];
      }
    }
    if (!holds)
      fail_device(call.info().name, "the indices of a compressed tensor contradict each other");
  }
}

// Arguments: segment_reduce(data, reduce, *, lengths, indices, offsets, axis, unsafe, initial).
void segments(const Call& call) {
  const Tensor data = call.tensor(0);
  const Tensor lengths = known_values(named(call, "lengths"));
  const auto unsafe = call.op().schema().argumentIndexWithName("unsafe");
  if (!lengths.defined() || call.argument(static_cast<std::size_t>(*unsafe)).toBool()) return;
  if (lengths.numel() == 0 || data.dim() < lengths.dim()) return;
  const WithContentsScope real;
  TORCH_CHECK(lengths.min().item<std::int64_t>() >= 0, "lengths contains negative value!");
  TORCH_CHECK(lengths.sum(-1).eq(data.size(lengths.dim() - 1)).all().item<bool>(),
              "segment_reduce(): Expected all rows of lengths along axis to sum to "
              "data.size(lengths.dim()-1) when !unsafe.");
}

const CheckTable kIndexChecks{
    {"index", of_elements},
    {"_unsafe_index", of_elements},
    {"index_put", of_elements},
    {"_index_put_impl", of_elements},
    {"_unsafe_index_put", of_elements},
    {"gather", scatter_or_gather},
    {"scatter", scatter_or_gather},
    {"scatter_add", scatter_or_gather},
    {"scatter_reduce", scatter_or_gather},
    {"index_select", along_dimension<below>},
    {"index_add", along_dimension<below>},
    {"index_copy", along_dimension<below>},
    {"index_reduce", along_dimension<below>},
    {"index_fill", along_dimension<around>},
    {"take", of_all_elements},
    {"put", of_all_elements},
    {"_embedding_bag", of_bags},
    {"_embedding_bag_forward_only", of_bags},
    {"nll_loss_forward", of_classes},
    {"nll_loss_backward", of_classes},
    {"nll_loss2d_forward", of_classes},
    {"nll_loss2d_backward", of_classes},
    {"multi_margin_loss", of_classes},
    {"max_unpool2d", of_places},
    {"max_unpool3d", of_places},
    {"masked_scatter", enough_to_scatter},
    {"repeat_interleave", repeats},
    {"bincount", counted},
    {"segment_reduce", segments},
    {"_validate_compressed_sparse_indices", compressed},
};

}  // namespace

void add_embedding(WrittenOut& kernels) { kernels.add("embedding", TORCH_FN(embedding)); }

}  // namespace plimsoll::simulated
