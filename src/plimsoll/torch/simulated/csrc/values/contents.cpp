#include "contents.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "../memory.h"
#include "../virtual.h"
#include "budget.h"

namespace plimsoll::simulated {
namespace {

// The most elements that are drawn at a time, and whose bounds are looked for.
constexpr std::int64_t kMostDrawn = std::int64_t{1} << 20;
constexpr std::int64_t kMostSearched = std::int64_t{1} << 16;

// The bytes that a tensor's elements lie in, from the start of its storage.
struct Extent {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_dense = false;  // it has an element at each place
};

Extent extent_of(const at::Tensor& tensor) {
  const std::size_t item = tensor.itemsize();
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto begin = static_cast<std::size_t>(tensor.storage_offset()) * item;
  return {begin, begin + static_cast<std::size_t>(last + 1) * item,
          last + 1 == tensor.numel() && tensor.is_non_overlapping_and_dense()};
}

// Of the part's bytes, read as numbers of a type: a description is of the type that was written.
Description description_of(const Contents::Part& part, at::ScalarType type) {
  const bool is_zero = part.description.is_constant() && part.description.low == 0;
  const bool is_other = part.type != type && !is_zero;
  return part.is_unwritten || is_other ? Description::of_type(type) : part.description;
}

// Elements in order of their places, which begin with `first` in the series.
void draw_into(std::byte* to, const Contents::Part& part, std::uint64_t first, std::int64_t count,
               at::ScalarType type) {
  const at::Tensor drawn = at::empty({count}, at::TensorOptions().dtype(at::kDouble));
  const Description description = description_of(part, type);
  draw(description, part.series, first, type, count, drawn.mutable_data_ptr<double>());
  at::from_blob(to, {count}, at::TensorOptions().dtype(type)).copy_(drawn);
}

template <typename Each>
void for_parts_in(const Contents& contents, std::size_t begin, std::size_t end, Each each) {
  std::size_t start = 0;
  for (const Contents::Part& part : contents.parts()) {
    if (start >= end) return;
    if (part.end > begin) each(part, start);
    start = part.end;
  }
}

Source worst_source(const Contents& contents, const Extent& extent) {
  Source worst = Source::computed;
  for_parts_in(contents, extent.begin, extent.end, [&](const Contents::Part& part, std::size_t) {
    worst = std::max(worst, part.source);
  });
  return worst;
}

// Draws the elements within the extent that have no values.
void draw_missing(Contents& contents, const Extent& extent, at::ScalarType type, std::size_t item) {
  contents.cut(extent.begin, item);
  contents.cut(extent.end, item);
  std::size_t start = 0;
  for (Contents::Part& part : contents.parts_for_writing()) {
    if (start >= extent.begin && part.end <= extent.end && part.source == Source::described) {
      draw_into(contents.memory() + start, part, part.first,
                static_cast<std::int64_t>((part.end - start) / item), type);
      part.source = Source::assumed;
    }
    start = part.end;
  }
}

// What a tensor is besides its elements: conjugated, negated, a plain number.
at::Tensor with_bits_of(const at::Tensor& tensor, at::Tensor values) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    values.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  if (tensor.is_conj()) values._set_conj(true);
  if (tensor.is_neg()) values._set_neg(true);
  return values;
}

at::Tensor over(std::byte* memory, const at::Tensor& tensor, std::size_t begin) {
  at::Tensor values = at::from_blob(memory + begin, tensor.sizes(), tensor.strides(),
                                    at::TensorOptions().dtype(tensor.dtype()));
  return with_bits_of(tensor, values);
}

Contents& contents_of(Allocation& allocation) {
  if (!allocation.contents) allocation.contents = std::make_unique<Contents>(allocation.size);
  return *allocation.contents;
}

Description bounds_of(const at::Tensor& values) {
  if (values.numel() == 0 || values.is_complex()) return {};
  const at::Tensor numbers = values.to(at::kDouble);
  if (numbers.numel() == 1) {
    const double value = numbers.item<double>();
    return std::isnan(value) ? Description() : Description::constant(value);
  }
  const auto [low, high] = at::aminmax(numbers);
  Description found = Description::between(low.item<double>(), high.item<double>());
  if (std::isnan(found.low) || std::isnan(found.high)) return {};
  if (values.scalar_type() == at::kBool) found.mean = numbers.mean().item<double>();
  return found;
}

// What is left of the bounds of values that nobody is sure of.
Description signs_of(const Description& bounds, const Description& any) {
  Description kept = any;
  if (bounds.low >= 0) kept.low = std::max(kept.low, 0.0);
  if (bounds.high <= 0) kept.high = std::min(kept.high, 0.0);
  return kept.is_constant() ? any : kept;
}

}  // namespace

Contents::Contents(std::size_t size) : size_(size) {
  Part& whole = parts_.emplace_back();
  whole.end = size;
  whole.is_unwritten = true;
  whole.series = next_series();
}

Contents::~Contents() { give_room_back(); }

void Contents::give_room_back() {
  if (memory_ == nullptr) return;
  if (is_budgeted_) {
    ::munmap(memory_, size_);
    Budget::instance().give_bytes(size_);
  } else {
    delete[] memory_;
  }
  memory_ = nullptr;
}

bool Contents::make_room(at::ScalarType type) {
  if (memory_ != nullptr) return true;
  is_budgeted_ = !are_few(size_, type);
  if (!is_budgeted_) {
    memory_ = new std::byte[size_]();
    return true;
  }
  if (!Budget::instance().take_bytes(size_)) return false;
  void* const made = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(made != MAP_FAILED, "the host has no address space for ", size_, " bytes");
  memory_ = static_cast<std::byte*>(made);
  return true;
}

void Contents::cut(std::size_t at, std::size_t item) {
  std::size_t start = 0;
  for (auto place = parts_.begin(); place != parts_.end(); ++place) {
    if (at == start || at >= size_) return;
    if (at < place->end) {
      Part before = *place;
      before.end = at;
      place->first += (at - start) / item;
      parts_.insert(place, before);
      return;
    }
    start = place->end;
  }
}

void Contents::take_zeros(std::size_t begin, std::size_t end, at::ScalarType type) {
  const bool are_any =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.is_unwritten; });
  if (!are_any || !make_room(type)) return;
  const std::size_t item = c10::elementSize(type);
  cut(begin, item);
  cut(end, item);
  std::size_t start = 0;
  for (Part& part : parts_) {
    if (part.is_unwritten && start >= begin && part.end <= end) {
      part = {part.end, Source::computed, {}, type, false, 0, 0};
    }
    start = part.end;
  }
}

void Contents::take_over(const Contents& other) {
  const std::size_t kept = std::min(size_, other.size_);
  if (other.memory_ != nullptr && make_room(c10::ScalarType::Byte)) {
    std::copy_n(other.memory_, kept, memory_);
  }
  std::size_t start = 0;
  for (Part part : other.parts_) {
    if (start >= kept) return;
    const std::size_t begin = start;
    start = part.end;
    part.end = std::min(part.end, kept);
    if (memory_ == nullptr && part.source != Source::described) continue;
    write(begin, part);
  }
}

void Contents::write(std::size_t begin, const Part& part) {
  if (begin == 0 && part.end >= size_) {
    parts_.assign(1, part);
    parts_[0].end = size_;
    if (part.source == Source::described) give_room_back();
    return;
  }
  const std::size_t item = c10::elementSize(part.type);
  cut(begin, item);
  cut(part.end, item);
  std::size_t start = 0;
  auto first = parts_.begin();
  while (first != parts_.end() && start < begin) start = (first++)->end;
  auto last = first;
  while (last != parts_.end() && last->end <= part.end) ++last;
  parts_.insert(parts_.erase(first, last), part);
}

Known known_of(const at::Tensor& tensor) {
  const WithContentsScope real;
  const Allocation* const allocation = allocation_of(tensor);
  const Description any = Description::of_type(tensor.scalar_type());
  if (allocation == nullptr || !allocation->contents) {
    const bool is_empty = tensor.numel() == 0;
    return {is_empty ? Source::computed : Source::described, any};
  }
  if (tensor.numel() == 0) return {Source::computed, any};
  const Contents& contents = *allocation->contents;
  const Extent extent = extent_of(tensor);
  Known known{Source::computed, any, 0, 0};
  bool is_first = true;
  double before = 0;  // bytes
  for_parts_in(
      contents, extent.begin, extent.end, [&](const Contents::Part& part, std::size_t start) {
        const Description description = description_of(part, tensor.scalar_type());
        known.source = std::max(known.source, part.source);
        const auto here =
            static_cast<double>(std::min(part.end, extent.end) - std::max(start, extent.begin));
        known.description = join(known.description, description, before / (before + here));
        before += here;
        known.series = is_first ? part.series : 0;
        known.first = part.first + (std::max(extent.begin, start) - start) / tensor.itemsize();
        is_first = false;
      });
  if (known.source != Source::described) {
    known.description = tensor.numel() <= kMostSearched ? bounds_of(read_values(tensor)) : any;
    if (known.source >= Source::assumed) known.description = signs_of(known.description, any);
    known.series = 0;
  }
  if (c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    known.description.is_whole = true;
  }
  return known;
}

Source source_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return Source::computed;
  const Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || !allocation->contents) return Source::described;
  return worst_source(*allocation->contents, extent_of(tensor));
}

bool can_be_read(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return false;
  const Extent extent = extent_of(tensor);
  const bool has_values = allocation->contents && allocation->contents->memory() != nullptr &&
                          worst_source(*allocation->contents, extent) != Source::described;
  return has_values || are_few(extent.end - extent.begin, tensor.scalar_type());
}

at::Tensor read_values(const at::Tensor& tensor) {
  const WithContentsScope real;
  if (tensor.numel() == 0)
    return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()));
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return {};
  Contents& contents = contents_of(*allocation);
  const Extent extent = extent_of(tensor);
  const Source worst = worst_source(contents, extent);
  if (worst != Source::described) return over(contents.memory(), tensor, extent.begin);
  const std::size_t item = tensor.itemsize();
  const auto count = static_cast<std::int64_t>((extent.end - extent.begin) / item);
  if (count > kMostDrawn) return {};
  if (contents.memory() != nullptr) {
    draw_missing(contents, extent, tensor.scalar_type(), item);
    return over(contents.memory(), tensor, extent.begin);
  }
  at::Tensor drawn = at::empty({count}, at::TensorOptions().dtype(tensor.dtype()));
  auto* const to = static_cast<std::byte*>(drawn.mutable_data_ptr());
  for_parts_in(contents, extent.begin, extent.end,
               [&](const Contents::Part& part, std::size_t start) {
                 const std::size_t from = std::max(start, extent.begin);
                 const std::size_t until = std::min(part.end, extent.end);
                 draw_into(to + (from - extent.begin), part, part.first + (from - start) / item,
                           static_cast<std::int64_t>((until - from) / item), tensor.scalar_type());
               });
  return with_bits_of(tensor, drawn.as_strided(tensor.sizes(), tensor.strides()));
}

at::Tensor writable_values(const at::Tensor& tensor, bool is_overwritten) {
  const WithContentsScope real;
  if (tensor.numel() == 0) return read_values(tensor);
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return {};
  Contents& contents = contents_of(*allocation);
  const Extent extent = extent_of(tensor);
  const bool is_replaced = is_overwritten && extent.is_dense;
  if (!is_replaced) contents.take_zeros(extent.begin, extent.end, tensor.scalar_type());
  const bool is_missing = worst_source(contents, extent) == Source::described && !is_replaced;
  const std::size_t item = tensor.itemsize();
  if (is_missing && !are_few(extent.end - extent.begin, tensor.scalar_type())) return {};
  if (!contents.make_room(tensor.scalar_type())) return {};
  if (is_missing) draw_missing(contents, extent, tensor.scalar_type(), item);
  return over(contents.memory(), tensor, extent.begin);
}

void note_values(const at::Tensor& tensor, Source source) {
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || tensor.numel() == 0) return;
  Contents& contents = contents_of(*allocation);
  const Extent extent = extent_of(tensor);
  Contents::Part part;
  part.end = extent.end;
  part.type = tensor.scalar_type();
  part.source = extent.is_dense ? source : std::max(source, worst_source(contents, extent));
  contents.write(extent.begin, part);
}

void note_described(const at::Tensor& tensor, const Description& description) {
  Known known;
  known.description = description;
  note_same(tensor, known);
}

void note_told(const at::Tensor& tensor, const at::Tensor& values) {
  const at::Tensor to = writable_values(tensor, true);
  if (!to.defined()) return;
  to.copy_(values);
  note_values(tensor, Source::told);
}

void note_same(const at::Tensor& tensor, const Known& as) {
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || tensor.numel() == 0) return;
  const Extent extent = extent_of(tensor);
  Contents::Part part;
  part.end = extent.end;
  part.type = tensor.scalar_type();
  part.description = as.description;
  part.series = as.series != 0 ? as.series : next_series();
  part.first = as.series != 0 ? as.first : 0;
  if (!extent.is_dense) {  // what lies between is described with it
    const Description any = Description::of_type(tensor.scalar_type());
    for_parts_in(contents_of(*allocation), extent.begin, extent.end,
                 [&](const Contents::Part& between, std::size_t) {
                   const bool has_values = between.source != Source::described;
                   part.description =
                       join(part.description,
                            has_values ? any : description_of(between, tensor.scalar_type()));
                 });
    part.series = next_series();
    part.first = 0;
  }
  contents_of(*allocation).write(extent.begin, part);
}

void fill_unknown(const at::Tensor& tensor) {
  const bool is_integer = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  tensor.fill_(is_integer ? 0 : 1);
}

}  // namespace plimsoll::simulated
